// How much of attention is computed at once: positions of a tile, rows of a panel, and where their numbers are.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTile = 64;  // positions at a time
constexpr int kTileVectors = kTile / kLanes;
constexpr int kMostTiles = 4;  // whose softmax is computed at once
constexpr int kSpan = kMostTiles * kTile, kSpanVectors = kSpan / kLanes;
constexpr int kMaxRows = 6;    // rows at a time: with 2 vectors each they fill 16 registers, with 4 they fill 32
constexpr int kManyRows = 12;  // from so many rows on, memory is not what takes the time

// Vectors per row: as many as the registers hold, and enough to keep both multipliers busy with few rows.
template <int kRows>
constexpr int kWidth = kLanes == 16 || kRows <= 3 ? 4 : 2;

inline int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Memory of one unit, in `scratch`.
struct Room {
  int64_t rows, width;
  float *queries, *sums, *largest, *totals, *factors, *scores, *keys, *values, *row;

  Room(float* scratch, int64_t head_size, int64_t num_rows) : rows(num_rows), width(rounded_up(head_size, kLanes)) {
    scores = scratch;
    keys = scores + kMaxRows * kSpan;
    values = keys + head_size * kTile;
    sums = values + kTile * width;
    queries = sums + rows * width;
    row = queries + rows * width;
    largest = row + width;
    totals = largest + rows;
    factors = totals + rows;
  }
  int64_t size(const float* scratch) const { return factors + rows - scratch; }
};

// A range of rows that is computed at once. Row r is head r % group of query r / group.
struct Panel {
  int64_t begin;
  int rows;
};

inline int64_t num_panels(int64_t rows) { return (rows + kMaxRows - 1) / kMaxRows; }

inline Panel panel(int64_t rows, int64_t index) {  // of sizes as even as can be
  const int64_t count = num_panels(rows), begin = rows * index / count;
  return {begin, int(rows * (index + 1) / count - begin)};
}

}  // namespace
}  // namespace modulm::MODULM_ISA
