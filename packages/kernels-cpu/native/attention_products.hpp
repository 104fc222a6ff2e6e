// The two matrix products of attention: queries x keys, weights x values. A few rows at a time stay in registers.
//
// Included only by files that are compiled once per instruction set. Key and value memory may be 16-bit; it widens
// here.
#pragma once

#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTile = 64;  // positions at a time
constexpr int kTileVectors = kTile / kLanes;
constexpr int kMaxRows = 6;  // rows at a time: with 2 vectors each they fill 16 registers, with 4 they fill 32

// Vectors per row: as many as the registers hold, and enough to keep both multipliers busy with few rows.
template <int kRows>
constexpr int kWidth = kLanes == 16 || kRows <= 3 ? 4 : 2;

// What will be read next, asked for a little at a time: a processor's own guesses end where a block does, and to ask
// for everything at once would only wait. A part is 16 positions.
struct Ahead {
  const char *keys[kTile / 16], *values[kTile / 16];
  int parts = 0;
  int64_t key_step = 0;    // bytes from one number of the keys to the next
  int64_t value_size = 0;  // bytes of a position's values
  int64_t skip = 0;        // numbers of keys that stand in one line, less one

  inline void ask_keys(int64_t d) const {
    if ((d & skip) != 0) return;
    for (int i = 0; i < parts; ++i) __builtin_prefetch(keys[i] + d * key_step);
  }

  inline void ask_values(int t) const {
    if (t / 16 >= parts) return;
    const char* row = values[t / 16] + t % 16 * value_size;
    for (int64_t i = 0; i < value_size; i += 64) __builtin_prefetch(row + i);
  }
};

// scores[r][lane of v] = sum over d of queries[d][r] * keys[v][d][lane], for vectors begin <= v < end.
template <int kRows, class T>
inline void query_times_keys(const float* queries, const T* const* keys, int64_t stride, int64_t size, int begin,
                             int end, const Ahead& ahead, float* scores) {
  constexpr int kVectors = kWidth<kRows>;
  for (int v = begin / kVectors * kVectors; v < end; v += kVectors) {
    Vec sum[kRows][kVectors];
    const T* from[kVectors];
    const bool asks = ahead.parts > 0 && v <= begin;
    for (int j = 0; j < kVectors; ++j) {
      from[j] = keys[v + j];
      for (int r = 0; r < kRows; ++r) sum[r][j] = all(0.0f);
    }
    for (int64_t d = 0; d < size; ++d) {
      if (asks) ahead.ask_keys(d);
      Vec key[kVectors];
      for (int j = 0; j < kVectors; ++j) key[j] = load(from[j] + d * stride);
      for (int r = 0; r < kRows; ++r) {
        const Vec query = all(queries[d * kRows + r]);
        for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(query, key[j], sum[r][j]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) store(scores + r * kTile + (v + j) * kLanes, sum[r][j]);
    }
  }
}

// sums[r][first ...] = sums[r] * factors[r] + sum over positions of weights[r][t] * values[t], kVectors wide.
template <int kRows, int kVectors, class T>
inline void add_values_at(const float* weights, const float* factors, const T* const* values, int begin, int end,
                          const Ahead& ahead, float* sums, int64_t width, int64_t first) {
  Vec sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const Vec factor = all(factors[r]);
    for (int j = 0; j < kVectors; ++j) sum[r][j] = load(sums + r * width + first + j * kLanes) * factor;
  }
  const bool asks = ahead.parts > 0 && first == 0;
  for (int t = begin; t < end; ++t) {
    if (asks) ahead.ask_values(t);
    Vec value[kVectors];
    for (int j = 0; j < kVectors; ++j) value[j] = load(values[t] + first + j * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = all(weights[r * kTile + t]);
      for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(weight, value[j], sum[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(sums + r * width + first + j * kLanes, sum[r][j]);
  }
}

// The same for a whole row of `width` numbers, a multiple of kLanes.
template <int kRows, class T>
inline void add_values(const float* weights, const float* factors, const T* const* values, int begin, int end,
                       const Ahead& ahead, float* sums, int64_t width) {
  constexpr int kVectors = kWidth<kRows>;
  int64_t first = 0;
  for (; first + kVectors * kLanes <= width; first += kVectors * kLanes) {
    add_values_at<kRows, kVectors>(weights, factors, values, begin, end, ahead, sums, width, first);
  }
  for (; first < width; first += kLanes) {
    add_values_at<kRows, 1>(weights, factors, values, begin, end, ahead, sums, width, first);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
