// The products with caches of signed bytes: queries and weights become 16-bit codes, sums of a tile exact integers.
//
// A row of queries has one scale; a row's weights of a tile, times the values' scales, have another: so weights far
// below the largest of all count as long as they are not far below their tile's. Rounding to 16 bits is lost beside
// that of the cache. Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_products.hpp"

namespace modulm::MODULM_ISA {
namespace {

// sum[r][j] += products of the bytes of quads(j) with the factors of row r: first every other byte, then those between,
// as registers are few. Callers are functions of their own, or what is around them takes registers as well.
template <int kRows, int kVectors, class Quads>
inline void add_quads(Ints (&sum)[kRows][kVectors], const int32_t* factors, int64_t stride, const Quads& quads) {
  Ints bytes[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) bytes[j] = low_bytes(quads(j));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Ints factor = all_ints(factors[r * stride]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[r][j] = add_products(sum[r][j], bytes[j], factor);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) bytes[j] = high_bytes(quads(j));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Ints factor = all_ints(factors[r * stride + 1]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[r][j] = add_products(sum[r][j], bytes[j], factor);
  }
}

// scores[r][lane of v] = factors[r] * scales[v][lane] * sum over quads of query r * keys[v][quad][lane]. Queries are
// codes [size / kLanes][kRows][kLanes]; `stride`: bytes from a quad to the next.
template <int kRows>
[[gnu::noinline]] void codes_times_keys(const int32_t* queries, const float* factors, const int8_t* const* keys,
                                        const float* const* scales, int64_t stride, int64_t size, int begin, int end,
                                        const Ahead& ahead, Sweep& sweep, float* scores) {
  constexpr int kVectors = kWidth<kRows>;
  Ints sum[kRows][kVectors];
  const auto start = [&](int) { fill(sum, all_ints(0)); };
  const auto part = [&](int v, int64_t d, int first, int last) {
    const int32_t* some = queries + d * kRows;
    for (int i = first; i < last; i += kQuad) {
      add_quads(sum, some + i, kLanes, [&](int j) { return load_ints(keys[v + j] + (d + i) / kQuad * stride); });
    }
  };
  over_keys<kVectors>(size, begin, end, ahead, sweep, start, part, [&](int v) {
    for (int j = 0; j < kVectors; ++j) {
      const Vec scale = load(scales[v + j]);
      for (int r = 0; r < kRows; ++r) {
        store(scores + r * kSpan + (v + j) * kLanes, to_floats(sum[r][j]) * (scale * all(factors[r])));
      }
    }
  });
}

// sums[r] += factors[r] * sum over positions of the codes of row r * values, for quads of positions begin .. end - 1.
template <int kRows>
[[gnu::noinline]] void add_bytes(const int32_t* codes, const float* factors, const Rows<const int8_t>& values,
                                 int begin, int end, const Ahead& ahead, Sweep& sweep, float* sums, int64_t width) {
  over_values<kWidth<kRows>>(values, begin, end, ahead, sweep, width, [&](auto vectors, int64_t first, auto walk) {
    constexpr int kVectors = vectors;
    Ints sum[kRows][kVectors];
    fill(sum, all_ints(0));
    walk([&](const int8_t* from, int t, int stop) {
      for (from += first * kQuad; t < stop; t += kQuad, from += kQuad * values.width) {
        add_quads(sum, codes + t, kSpan, [&](int j) { return load_ints(from + j * kLanes * kQuad); });
      }
    });
    for (int r = 0; r < kRows; ++r) {
      float* to = sums + r * width + first;
      for (int j = 0; j < kVectors; ++j) {
        store(to + j * kLanes, fma(to_floats(sum[r][j]), all(factors[r]), load(to + j * kLanes)));
      }
    }
  });
}

// What a unit multiplies with one head of the cache.
class ByteProducts {
 public:
  using Number = int8_t;

  ByteProducts(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const Room& room)
      : table_(unit.blocks),
        room_(room),
        blocks_(call, kv_head),
        copy_(reinterpret_cast<int8_t*>(room.keys), 1, kTile, room.width),
        copies_(call.block_size % kLanes != 0 || call.head_size % kLanes != 0) {}

  // Positions whose softmax is computed at once: more wait less, where they need no copy.
  int64_t span() const { return copies_ ? kTile : kSpan; }

  // Take row r of a panel: `width` numbers, scaled.
  void set_query(const Panel& part, int r, const float* numbers) {
    const Codes16 rule(largest_magnitude(numbers, room_.width));
    room_.factors[part.begin + r] = rule.one;
    int32_t* to = as_codes(room_.queries) + part.begin * room_.width + r * kLanes;
    for (int64_t d = 0; d < room_.width; d += kLanes) rule.store(load(numbers + d), to + d * part.rows);
  }

  // Get ready for positions begin .. end - 1 of the span that starts at `start`.
  void find(int64_t start, int64_t begin, int64_t end) {
    if (copies_) copy(start, begin, end);
    const auto set = [&](int v, const auto& blocks, int64_t block, int64_t offset) {
      keys_[v] = blocks.key(block, offset);
      key_scales_[v] = blocks.key_scale(block, offset);
      value_scales_[v] = blocks.value_scale(block, offset);
    };
    if (copies_) {
      for (int v = 0; v < kTileVectors; ++v) set(v, copy_, 0, copied_vector(v, start, begin, end) * kLanes);
    } else {
      each_vector(table_, blocks_.block_size, span(), start, begin, end,
                  [&](int v, int64_t block, int64_t offset) { set(v, blocks_, block, offset); });
    }
  }

  // Scores of a panel's rows, for vectors of a tile of the span.
  template <int kRows>
  void score(int64_t row, int begin, int end, const Ahead& ahead, Sweep& sweep) const {
    codes_times_keys<kRows>(as_codes(room_.queries) + row * room_.width, room_.factors + row, keys_, key_scales_,
                            (copies_ ? kTile : blocks_.block_size) * kQuad, blocks_.head_size, begin, end, ahead, sweep,
                            room_.scores);
  }

  // Add weighted values of the span's positions begin .. end - 1, all in one tile, to the sums of a panel's rows. The
  // scores have become weights, which are used up.
  template <int kRows>
  void add(int64_t row, int64_t start, int begin, int end, const Ahead& ahead, Sweep& sweep) const {
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) factors[r] = weights_to_codes(room_.scores + r * kSpan, begin, end);
    const int first = begin / kQuad * kQuad;
    const Rows<const int8_t> values = copies_ ? copied_from<int8_t>(copy_.value(0, 0), room_.width, first)
                                              : values_from(blocks_, table_, start + first);
    add_bytes<kRows>(as_codes(room_.scores), factors, values, first, end, ahead, sweep,
                     room_.sums + row * room_.width, room_.width);
  }

 private:
  static int32_t* as_codes(float* memory) { return reinterpret_cast<int32_t*>(memory); }

  // Returns what code 1 stands for. What a row does not see has the weight zero; its scale may be anything.
  float weights_to_codes(float* weights, int begin, int end) const {
    const int first = begin / kLanes, last = (end - 1) / kLanes;
    Vec most = all(0.0f);
    for (int v = first; v <= last; ++v) {
      const Vec weight = load(weights + v * kLanes);
      const Vec scaled = where_less(all(0.0f), weight, weight * load(value_scales_[v]), all(0.0f));
      store(weights + v * kLanes, scaled);
      most = larger(scaled, most);
    }
    const Codes16 rule(largest_of(most));
    for (int v = first; v <= last; ++v) rule.store(load(weights + v * kLanes), as_codes(weights) + v * kLanes);
    return rule.one;
  }

  // A tile of blocks that are no whole vectors, or of heads that are none, as one block of kTile tokens.
  void copy(int64_t start, int64_t begin, int64_t end) const {
    const int64_t size = blocks_.head_size;
    for (int64_t position = begin / kQuad * kQuad; position < (end + kQuad - 1) / kQuad * kQuad; ++position) {
      const int64_t to = position - start;
      const Column<int8_t> value = copy_.value_column(0, to);
      for (int64_t d = 0; d < room_.width; ++d) value.first[d * value.step] = 0;
      if (position < begin || position >= end) continue;
      const int64_t block = table_[position / blocks_.block_size], offset = position % blocks_.block_size;
      const int8_t* key = blocks_.key(block, offset);
      for (int64_t d = 0; d < size; d += kQuad) {
        __builtin_memcpy(copy_.key(0, to) + d * kTile, key + d * blocks_.block_size, kQuad);
      }
      const Column<const int8_t> from = blocks_.value_column(block, offset);
      for (int64_t d = 0; d < size; ++d) value.first[d * value.step] = from.first[d * from.step];
      *copy_.key_scale(0, to) = *blocks_.key_scale(block, offset);
      *copy_.value_scale(0, to) = *blocks_.value_scale(block, offset);
    }
  }

  const int32_t* const table_;
  const Room& room_;
  const Blocks<const int8_t> blocks_;
  const Blocks<int8_t> copy_;
  const bool copies_;
  const int8_t* keys_[kSpanVectors];
  const float *key_scales_[kSpanVectors], *value_scales_[kSpanVectors];
};

}  // namespace
}  // namespace modulm::MODULM_ISA
