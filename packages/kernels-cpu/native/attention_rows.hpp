// The rows of a unit: queries times the heads that share keys. Where their state is, and which are computed at once.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_cache.hpp"
#include "attention_products.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Memory of one unit, in `scratch`.
struct Room {
  int64_t rows, width;
  float *queries, *sums, *largest, *totals, *scores, *keys, *values, *row;

  Room(float* scratch, int64_t head_size, int64_t num_rows) : rows(num_rows), width(rounded_up(head_size, kLanes)) {
    scores = scratch;
    keys = scores + kMaxRows * kSpan;
    values = keys + head_size * kTile;
    sums = values + kTile * width;
    queries = sums + rows * width;
    row = queries + rows * width;
    largest = row + width;
    totals = largest + rows;
  }
  int64_t size(const float* scratch) const { return totals + rows - scratch; }
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
