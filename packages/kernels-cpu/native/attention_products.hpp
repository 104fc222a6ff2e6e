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
constexpr int kMostTiles = 4;  // whose softmax is computed at once
constexpr int kSpan = kMostTiles * kTile, kSpanVectors = kSpan / kLanes;
constexpr int kMaxRows = 6;  // rows at a time: with 2 vectors each they fill 16 registers, with 4 they fill 32

// Vectors per row: as many as the registers hold, and enough to keep both multipliers busy with few rows.
template <int kRows>
constexpr int kWidth = kLanes == 16 || kRows <= 3 ? 4 : 2;

// What will be read later, asked for a little at a time: a processor's own guesses end where a block does, and to ask
// for everything at once would only wait. A part is a column of lines.
struct Ahead {
  const char* parts[kTile / 16];
  int count = 0;
  int64_t lines = 0, step = 0;  // of a part, and bytes from one to the next

  // Ask for what is due at a step, where `rate` spreads all over so many of them.
  inline int64_t rate(int64_t steps) const { return count == 0 ? 0 : (lines * kWhole + steps - 1) / steps; }
  inline void ask(int64_t rate, int64_t index) const {
    const int64_t due = (index + 1) * rate / kWhole, end = due < lines ? due : lines;
    for (int64_t line = index * rate / kWhole; line < end; ++line) ask_line(line);
  }
  inline void ask_line(int64_t line) const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(parts[i] + line * step, 0, 2);
  }

 private:
  static constexpr int64_t kWhole = 1 << 12;
};

// All heads of a range of blocks, which will be read after all this: asked for in the order of memory, which delivers
// twice as much then.
struct Sweep {
  const char* origin;                // of the first head's keys in block 0
  const int32_t* block;              // that the current run is in
  int64_t block_bytes, value_bytes;  // to the next block, from keys to values
  int64_t run_lines;                 // of a block's keys or values
  bool is_values;                    // whether the current run is of values
  const char* at;                    // the next line
  int64_t left;                      // of the current run
  int64_t all = 0;                   // lines that have not been asked for
  int64_t stage_lines = 0;           // to ask for while one tile's keys or values are read

  inline void ask(int64_t lines) {
    if (lines > all) lines = all;
    all -= lines;
    while (lines > 0) {
      const int64_t some = lines < left ? lines : left;
      for (const char* end = at + some * 64; at != end; at += 64) __builtin_prefetch(at, 0, 2);
      lines -= some;
      left -= some;
      if (left == 0 && all + lines > 0) start_run();
    }
  }
  inline int64_t rate(int steps) const { return all == 0 ? 0 : int(stage_lines + steps - 1) / steps; }
  void start_run() {
    block += is_values;
    is_values = !is_values;
    at = origin + *block * block_bytes + (is_values ? value_bytes : 0);
    left = run_lines;
  }
};

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

// scores[r][lane of v] = sum over d of query r * keys[v][d][lane], for vectors begin <= v < end of a tile. Queries
// are [size / kLanes][kRows][kLanes].
template <int kRows, class T>
inline void query_times_keys(const float* queries, const T* const* keys, int64_t stride, int64_t size, int begin,
                             int end, const Ahead& ahead, Sweep& sweep, float* scores) {
  constexpr int kVectors = kWidth<kRows>;
  const int64_t rate = ahead.rate((size + kLanes - 1) / kLanes * (kTileVectors / kVectors));
  const int64_t sweep_rate = sweep.rate(int(size + kLanes - 1) / kLanes * (kTileVectors / kVectors));
  int64_t asked = 0;
  for (int v = begin / kVectors * kVectors; v < end; v += kVectors) {
    Vec sum[kRows][kVectors];
    const T* from[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      from[j] = keys[v + j];
      for (int r = 0; r < kRows; ++r) sum[r][j] = all(0.0f);
    }
    int64_t at = 0;
    for (int64_t d = 0; d < size; d += kLanes) {
      if (rate != 0) ahead.ask(rate, asked++);
      if (sweep_rate != 0) sweep.ask(sweep_rate);
      const float* some = queries + d * kRows;
      const int count = size - d < kLanes ? int(size - d) : kLanes;
      for (int i = 0; i < count; ++i, at += stride) {
        Vec key[kVectors];
        for (int j = 0; j < kVectors; ++j) key[j] = load(from[j] + at);
        for (int r = 0; r < kRows; ++r) {
          const Vec query = all(some[r * kLanes + i]);
          for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(query, key[j], sum[r][j]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) store(scores + r * kSpan + (v + j) * kLanes, sum[r][j]);
    }
  }
}

constexpr int kAskEvery = 16;  // positions of values

// sums[r][first ...] += sum over positions of weights[r][t] * values of t, kVectors wide.
template <int kRows, int kVectors, class T>
inline void add_values_at(const float* weights, Rows<T> values, int begin, int end, const Ahead& ahead, int64_t rate,
                          int64_t asked, Sweep& sweep, int64_t sweep_rate, float* sums, int64_t width, int64_t first) {
  Vec sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) sum[r][j] = load(sums + r * width + first + j * kLanes);
  }
  for (int t = begin; t < end;) {
    if (rate != 0) ahead.ask(rate, asked++);
    if (sweep_rate != 0) sweep.ask(sweep_rate);
    const T* from = values.here() + first;
    const int64_t left = values.block_size - values.offset, some = left < kAskEvery ? left : kAskEvery;
    const int before = t, stop = some < end - t ? t + int(some) : end;
    for (; t < stop; ++t, from += values.width) {
      Vec value[kVectors];
      for (int j = 0; j < kVectors; ++j) value[j] = load(from + j * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = all(weights[r * kSpan + t]);
        for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(weight, value[j], sum[r][j]);
      }
    }
    values.skip(stop - before);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(sums + r * width + first + j * kLanes, sum[r][j]);
  }
}

// The same for a whole row of `width` numbers, a multiple of kLanes, and positions of one tile.
template <int kRows, class T>
inline void add_values(const float* weights, const Rows<T>& values, int begin, int end, const Ahead& ahead,
                       Sweep& sweep, float* sums, int64_t width) {
  constexpr int kVectors = kWidth<kRows>, kSteps = kTile / kAskEvery;
  const int64_t passes = width / (kVectors * kLanes), rate = passes == 0 ? 0 : ahead.rate(kSteps * passes);
  const int64_t sweep_rate = passes == 0 ? 0 : sweep.rate(kSteps * int(passes));
  int64_t first = 0, asked = 0;
  for (; first + kVectors * kLanes <= width; first += kVectors * kLanes, asked += kSteps) {
    add_values_at<kRows, kVectors>(weights, values, begin, end, ahead, rate, asked, sweep, sweep_rate, sums, width,
                                   first);
  }
  for (; first < width; first += kLanes) {
    add_values_at<kRows, 1>(weights, values, begin, end, ahead, 0, 0, sweep, 0, sums, width, first);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
