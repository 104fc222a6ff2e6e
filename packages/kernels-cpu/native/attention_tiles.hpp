// What attention multiplies, as tiles take it. Scores may be large, so queries and keys keep 16 bits there: a number is the
// sum of two of bfloat16, its upper half and that of what is left, and has three products. Keys that bfloat16 holds as
// they are need one half. Weights and values are rounded to bfloat16, which is 2^-9 of each.
//
// A tile of rows is [16 rows][32 numbers], one of columns [16 pairs of numbers][16 columns][2]: 1 KiB each, and where
// there are low halves, theirs follows it. Included by kernels of the namespace `amx` only.
#pragma once

#include "attention_rows.hpp"
#include "tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTileRows = 16, kStep = 32;  // of a tile: rows, or columns; and numbers of each
constexpr int64_t kTileFloats = 256;       // that one takes the memory of

inline Vec upper_half(Vec x) { return as_floats(_mm512_and_si512(_mm512_castps_si512(x), all_ints(int32_t(0xffff0000)))); }

// 16 bits of each number of two vectors, one after the other or in turns: upper halves, or rounded to nearest even.
inline Ints upper_halves(Vec a, Vec b) {
  alignas(64) static constexpr int16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                   33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a), load_ints(kOdd), _mm512_castps_si512(b));
}
inline Ints upper_pairs(Vec a, Vec b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b));
}
inline Ints rounded(Vec a, Vec b) { return (Ints)_mm512_cvtne2ps_pbh(b, a); }
inline Ints rounded_pairs(Vec a, Vec b) {
  alignas(64) static constexpr int16_t kInTurns[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(load_ints(kInTurns), rounded(a, b));
}

// Adds the products of 32 rows by 32 columns to tiles 0 to 3: each is added to again when three others are done, as that
// takes as long. Where rows have low halves, columns may.
template <bool kLowRows, bool kLowColumns>
inline void add_products(const float* rows, const float* more_rows, const float* columns, const float* more_columns) {
  const auto multiply = [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  _tile_loadd(6, columns, 64);
  _tile_loadd(7, more_columns, 64);
  if (kLowRows) {
    _tile_loadd(4, rows + kTileFloats, 64);
    _tile_loadd(5, more_rows + kTileFloats, 64);
    multiply();
  }
  _tile_loadd(4, rows, 64);
  _tile_loadd(5, more_rows, 64);
  multiply();
  if (!kLowColumns) return;
  _tile_loadd(6, columns + kTileFloats, 64);
  _tile_loadd(7, more_columns + kTileFloats, 64);
  multiply();
}

// Tiles 0 to 3: 32 rows of 32 numbers, in tiles of float32.
struct Sums {
  float *rows, *more_rows;

  void load() const {
    _tile_loadd(0, rows, 64);
    _tile_loadd(1, rows + kTileFloats, 64);
    _tile_loadd(2, more_rows, 64);
    _tile_loadd(3, more_rows + kTileFloats, 64);
  }
  void store() const {
    _tile_stored(0, rows, 64);
    _tile_stored(1, rows + kTileFloats, 64);
    _tile_stored(2, more_rows, 64);
    _tile_stored(3, more_rows + kTileFloats, 64);
  }
};

inline TileShapes whole_tiles() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, kTileRows, 64);
  return shapes;
}

// A vector of a row that ends in it or before.
template <class T>
inline Vec load_some(const T* row, int64_t vector, int64_t size) {
  float numbers[kLanes] = {};
  for (int64_t i = vector * kLanes; i < size; ++i) numbers[i % kLanes] = widen(row[i]);
  return load(numbers);
}

// A span of the cache as columns. Keys are [vector of positions][32 numbers] tiles, values [32 positions][vector of
// numbers]; what is behind the head's size is zero.
template <class T>
class Columns {
 public:
  // float16 keeps 11 bits, bfloat16 8, bytes fewer.
  static constexpr bool kLow = std::is_same_v<T, Half>;
  static constexpr int64_t kKeyFloats = (kLow ? 2 : 1) * kTileFloats;  // from one tile of keys to the next

  // `spare` takes a vector of keys.
  Columns(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, float* keys, float* values, float* spare)
      : blocks_(call, kv_head),
        table_(unit.blocks),
        steps_(rounded_up(call.head_size, kStep) / kStep),
        keys_(keys),
        values_(values),
        spare_(spare) {}

  const float* key(int vector, int64_t step) const { return keys_ + (vector * steps_ + step) * kKeyFloats; }
  const float* value(int step, int64_t vector) const { return values_ + (step * 2 * steps_ + vector) * kTileFloats; }

  // Of positions begin .. end - 1, in a span that begins at `start`. Others' keys may be anything, their values are
  // zero, so that they may have weights of zero. Returns whether all values are finite.
  bool take(int64_t start, int64_t begin, int64_t end) {
    for (int64_t v = (begin - start) / kLanes; v <= (end - 1 - start) / kLanes; ++v) {
      take_keys(start + v * kLanes, begin, end, keys_ + v * steps_ * kKeyFloats);
    }
    Vec zeros = all(0.0f);
    for (int64_t s = (begin - start) / kStep; s <= (end - 1 - start) / kStep; ++s) {
      zeros = zeros + take_values(start + s * kStep, begin, end, values_ + s * 2 * steps_ * kTileFloats);
    }
    return sum_of(zeros) == 0.0f;
  }

 private:
  void take_keys(int64_t position, int64_t begin, int64_t end, float* to) {
    const int64_t size = blocks_.block_size;
    if (size % kLanes == 0) return take_keys(blocks_.key(table_[position / size], position % size), size, to);
    const int64_t first = begin > position ? begin : position;
    const int64_t stop = end < position + kLanes ? end : position + kLanes;
    for (int64_t i = 0; i < blocks_.head_size * kLanes; ++i) spare_[i] = 0.0f;
    for (int64_t t = first; t < stop; ++t) {
      const T* from = blocks_.key(table_[t / size], t % size);
      for (int64_t d = 0; d < blocks_.head_size; ++d) spare_[d * kLanes + (t - position)] = widen(from[d * size]);
    }
    take_keys(static_cast<const float*>(spare_), kLanes, to);
  }

  template <class Any>
  void take_keys(const Any* from, int64_t stride, float* to) const {
    const int64_t size = blocks_.head_size;
    int64_t d = 0;
    for (int64_t step = 0; step < steps_; ++step, to += kKeyFloats) {
      for (int i = 0; i < kStep / 2; ++i, d += 2) {
        const bool is_there = d + 1 < size;
        const Vec a = d < size ? load(from + d * stride) : all(0.0f), b = is_there ? load(from + (d + 1) * stride) : all(0.0f);
        put_keys(a, b, to + i * kLanes);
      }
    }
  }

  static void put_keys(Vec a, Vec b, float* to) {
    store_ints(to, upper_pairs(a, b));
    if (kLow) store_ints(to + kTileFloats, upper_pairs(a - upper_half(a), b - upper_half(b)));
  }

  // Returns zeros, and what is no number where a value is not finite.
  Vec take_values(int64_t position, int64_t begin, int64_t end, float* to) const {
    static constexpr T kNobody[kLargestHead] = {};
    const int64_t size = blocks_.head_size, block_size = blocks_.block_size;
    Vec zeros[2] = {all(0.0f), all(0.0f)};
    for (int i = 0; i < kStep / 2; ++i, to += kLanes) {
      const auto value_of = [&](int64_t t) {
        return t >= begin && t < end ? blocks_.value(table_[t / block_size], t % block_size) : kNobody;
      };
      const T *from = value_of(position + 2 * i), *next = value_of(position + 2 * i + 1);
      const auto take = [&](int64_t v, Vec a, Vec b) {
        zeros[0] = fma(a, all(0.0f), zeros[0]);
        zeros[1] = fma(b, all(0.0f), zeros[1]);
        store_ints(to + v * kTileFloats, rounded_pairs(a, b));
      };
      int64_t v = 0;
      for (; (v + 1) * kLanes <= size; ++v) take(v, load(from + v * kLanes), load(next + v * kLanes));
      for (; v < 2 * steps_; ++v) take(v, load_some(from, v, size), load_some(next, v, size));
    }
    return zeros[0] + zeros[1];
  }

  const Blocks<const T> blocks_;
  const int32_t* const table_;
  const int64_t steps_;
  float *const keys_, *const values_, *const spare_;
};

}  // namespace
}  // namespace modulm::MODULM_ISA
