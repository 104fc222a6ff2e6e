// What the matrix products of attention have in common, whatever the cache holds: how they go through a tile's memory.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_ahead.hpp"
#include "attention_cache.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Rows of values, from one position on: they follow one another as far as a block goes.
template <class T>
struct Rows {
  const T* origin;       // of the values in block 0
  const int32_t* block;  // that holds the position
  int64_t block_stride, block_size, width, offset;  // offset: of the position in the block

  const T* here() const { return origin + *block * block_stride + offset * width; }
  void skip(int64_t count) {
    offset += count;
    if (offset < block_size) return;
    offset = 0;
    ++block;
  }
};

// The cache's values from a position on, and a copied tile's.
template <class T>
inline Rows<const T> values_from(const Blocks<const T>& blocks, const int32_t* table, int64_t position) {
  const int64_t size = blocks.block_size;
  return {blocks.value(0, 0), table + position / size, blocks.block_stride, size, blocks.head_size, position % size};
}
template <class T>
inline Rows<const T> copied_from(const T* values, int64_t width, int64_t offset) {
  static constexpr int32_t kBlock = 0;
  return {values, &kBlock, 0, kTile, width, offset};
}

// All of a panel's sums, while they are in registers.
template <class V, int kRows, int kVectors>
inline void fill(V (&sum)[kRows][kVectors], V value) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[r][j] = value;
  }
}

// Calls set(v, block, offset) for the vectors of a span that holds positions begin .. end - 1: where its first position
// is. Vectors without any of these repeat another one. Blocks are whole vectors.
template <class Set>
inline void each_vector(const int32_t* table, int64_t block_size, int64_t span, int64_t start, int64_t begin,
                        int64_t end, const Set& set) {
  const int first = int(begin - start) / kLanes, last = int(end - 1 - start) / kLanes;
  const int64_t position = start + first * kLanes;
  const int32_t* block = table + position / block_size;
  int64_t offset = position % block_size;
  for (int v = 0; v < int(span) / kLanes; ++v) {
    set(v, *block, offset);
    if (v < first || v >= last) continue;
    offset += kLanes;
    if (offset < block_size) continue;
    offset = 0;
    ++block;
  }
}

// The same in a copied tile: vector to read instead of v.
inline int copied_vector(int v, int64_t start, int64_t begin, int64_t end) {
  const int first = int(begin - start) / kLanes, last = int(end - 1 - start) / kLanes;
  return v < first ? first : v > last ? last : v;
}

constexpr int kAskEvery = 4;  // numbers of keys, or positions of values: more lines at once would only wait

// For vectors begin <= v < end, kVectors at a time: start(v), then part(v, d, first, last) for numbers d + first to
// d + last - 1 of a head, where d is a multiple of kLanes, then finish(v).
template <int kVectors, class Start, class Part, class Finish>
inline void over_keys(int64_t size, int begin, int end, const Ahead& ahead, Sweep& sweep, const Start& start,
                      const Part& part, const Finish& finish) {
  const int64_t steps = (size + kAskEvery - 1) / kAskEvery * (kTileVectors / kVectors);
  const int64_t rate = ahead.rate(steps), sweep_rate = sweep.rate(int(steps));
  int64_t asked = 0;
  for (int v = begin / kVectors * kVectors; v < end; v += kVectors) {
    start(v);
    for (int64_t d = 0; d < size; d += kLanes) {
      const int count = size - d < kLanes ? int(size - d) : kLanes;
      for (int i = 0; i < count; i += kAskEvery) {
        if (rate != 0) ahead.ask(rate, asked++);
        if (sweep_rate != 0) sweep.ask(sweep_rate);
        part(v, d, i, i + kAskEvery < count ? i + kAskEvery : count);
      }
    }
    finish(v);
  }
}

// For rows of `width` numbers, a multiple of kLanes, kVectors at a time: pass(first, walk), where walk(part) calls
// part(values, t, stop) for runs of positions of a tile, from begin to end. At last passes of one vector.
template <int kVectors, class T, class Pass>
inline void over_values(const Rows<const T>& values, int begin, int end, const Ahead& ahead, Sweep& sweep,
                        int64_t width, const Pass& pass) {
  constexpr int kSteps = kTile / kAskEvery;
  const int64_t passes = width / (kVectors * kLanes), rate = passes == 0 ? 0 : ahead.rate(kSteps * passes);
  const int64_t sweep_rate = passes == 0 ? 0 : sweep.rate(kSteps * int(passes));
  const auto walk = [&](int64_t asked, bool asks, const auto& part) {
    Rows<const T> rows = values;
    for (int t = begin; t < end;) {
      if (asks && rate != 0) ahead.ask(rate, asked++);
      if (asks && sweep_rate != 0) sweep.ask(sweep_rate);
      const int64_t left = rows.block_size - rows.offset, some = left < kAskEvery ? left : kAskEvery;
      const int stop = some < end - t ? t + int(some) : end;
      part(rows.here(), t, stop);
      rows.skip(stop - t);
      t = stop;
    }
  };
  int64_t first = 0, asked = 0;
  for (; first + kVectors * kLanes <= width; first += kVectors * kLanes, asked += kSteps) {
    pass(std::integral_constant<int, kVectors>(), first, [&](const auto& part) { walk(asked, true, part); });
  }
  for (; first < width; first += kLanes) {
    pass(std::integral_constant<int, 1>(), first, [&](const auto& part) { walk(0, false, part); });
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
