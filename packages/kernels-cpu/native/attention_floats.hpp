// The products with caches of float32 and of 16- and 8-bit floats, which widen here. A few rows at a time stay in
// registers.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_products.hpp"

namespace modulm::MODULM_ISA {
namespace {

// scores[r][lane of v] = sum over d of query r * keys[v][d][lane], for vectors begin <= v < end of a tile. Queries
// are [size / kLanes][kRows][kLanes].
template <int kRows, class T>
inline void query_times_keys(const float* queries, const T* const* keys, int64_t stride, int64_t size, int begin,
                             int end, const Ahead& ahead, Sweep& sweep, float* scores) {
  constexpr int kVectors = kWidth<kRows>;
  Vec sum[kRows][kVectors];
  const auto start = [&](int) { fill(sum, all(0.0f)); };
  const auto part = [&](int v, int64_t d, int first, int last) {
    const float* some = queries + d * kRows;
    for (int i = first; i < last; ++i) {
      Vec key[kVectors];
      for (int j = 0; j < kVectors; ++j) key[j] = load(keys[v + j] + (d + i) * stride);
      for (int r = 0; r < kRows; ++r) {
        const Vec query = all(some[r * kLanes + i]);
        for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(query, key[j], sum[r][j]);
      }
    }
  };
  over_keys<kVectors>(size, begin, end, ahead, sweep, start, part, [&](int v) {
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) store(scores + r * kSpan + (v + j) * kLanes, sum[r][j]);
    }
  });
}

// sums[r] += sum over positions begin <= t < end of weights[r][t] * values of t.
template <int kRows, class T>
inline void add_values(const float* weights, const Rows<const T>& values, int begin, int end, const Ahead& ahead,
                       Sweep& sweep, float* sums, int64_t width) {
  over_values<kWidth<kRows>>(values, begin, end, ahead, sweep, width, [&](auto vectors, int64_t first, auto walk) {
    constexpr int kVectors = vectors;
    Vec sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) sum[r][j] = load(sums + r * width + first + j * kLanes);
    }
    walk([&](const T* from, int t, int stop) {
      for (from += first; t < stop; ++t, from += values.width) {
        Vec value[kVectors];
        for (int j = 0; j < kVectors; ++j) value[j] = load(from + j * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const Vec weight = all(weights[r * kSpan + t]);
          for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(weight, value[j], sum[r][j]);
        }
      }
    });
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) store(sums + r * width + first + j * kLanes, sum[r][j]);
    }
  });
}

template <class T>
inline void widen_run(const T* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}

// See `ByteProducts` in `attention_bytes.hpp`, which has the same members.
template <class T>
class FloatProducts {
 public:
  using Number = T;

  FloatProducts(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const Room& room)
      : table_(unit.blocks),
        room_(room),
        blocks_(call, kv_head),
        copies_keys_(copies(room) || call.block_size % kLanes != 0),
        copies_values_(copies(room) || call.head_size % kLanes != 0) {}

  int64_t head_size() const { return blocks_.head_size; }
  int64_t span() const { return copies_keys_ || copies_values_ || room_.rows > kMaxRows ? kTile : kSpan; }

  void set_query(const Panel& part, int r, const float* numbers) {
    float* to = room_.queries + part.begin * room_.width + r * kLanes;
    for (int64_t d = 0; d < room_.width; d += kLanes) store(to + d * part.rows, load(numbers + d));
  }

  void find(int64_t start, int64_t begin, int64_t end) {
    if (copies_keys_) {
      copy_keys(start, begin, end);
      for (int v = 0; v < kTileVectors; ++v) {
        copied_keys_[v] = room_.keys + copied_vector(v, start, begin, end) * kLanes;
      }
    } else {
      each_vector(table_, blocks_.block_size, span(), start, begin, end,
                  [&](int v, int64_t block, int64_t offset) { keys_[v] = blocks_.key(block, offset); });
    }
    if (copies_values_) copy_values(start, begin, end);
  }

  template <int kRows>
  void score(int64_t row, int begin, int end, const Ahead& ahead, Sweep& sweep) const {
    const float* queries = room_.queries + row * room_.width;
    const int64_t size = blocks_.head_size;
    if (copies_keys_) {
      query_times_keys<kRows>(queries, copied_keys_, kTile, size, begin, end, ahead, sweep, room_.scores);
    } else {
      query_times_keys<kRows>(queries, keys_, blocks_.block_size, size, begin, end, ahead, sweep, room_.scores);
    }
  }

  template <int kRows>
  void add(int64_t row, int64_t start, int begin, int end, const Ahead& ahead, Sweep& sweep) const {
    float* sums = room_.sums + row * room_.width;
    if (copies_values_) {
      const auto values = copied_from<float>(room_.values, room_.width, begin);
      add_values<kRows>(room_.scores, values, begin, end, ahead, sweep, sums, room_.width);
    } else {
      const auto values = values_from(blocks_, table_, start + begin);
      add_values<kRows>(room_.scores, values, begin, end, ahead, sweep, sums, room_.width);
    }
  }

 private:
  // For many rows 16-bit keys and values are widened once instead of per panel.
  static bool copies(const Room& room) { return sizeof(T) != sizeof(float) && room.rows >= kManyRows; }

  // Keys of positions begin .. end - 1 of the tile that starts at `start`, as float32 [head_size, kTile].
  void copy_keys(int64_t start, int64_t begin, int64_t end) const {
    for (int64_t position = begin; position < end;) {
      const int64_t offset = position % blocks_.block_size;
      const int64_t left = blocks_.block_size - offset, count = left < end - position ? left : end - position;
      const T* from = blocks_.key(table_[position / blocks_.block_size], offset);
      float* to = room_.keys + (position - start);
      for (int64_t d = 0; d < blocks_.head_size; ++d) widen_run(from + d * blocks_.block_size, to + d * kTile, count);
      position += count;
    }
  }

  // Values of the same positions, as float32 [kTile, width]; what is behind the head's size is zero.
  void copy_values(int64_t start, int64_t begin, int64_t end) const {
    for (int64_t position = begin; position < end; ++position) {
      const T* from = blocks_.value(table_[position / blocks_.block_size], position % blocks_.block_size);
      float* row = room_.values + (position - start) * room_.width;
      widen_run(from, row, blocks_.head_size);
      for (int64_t d = blocks_.head_size; d < room_.width; ++d) row[d] = 0.0f;
    }
  }

  const int32_t* const table_;
  const Room& room_;
  const Blocks<const T> blocks_;
  const bool copies_keys_, copies_values_;
  const T* keys_[kSpanVectors];
  const float* copied_keys_[kTileVectors];
};

}  // namespace
}  // namespace modulm::MODULM_ISA
