// The products for many rows with caches of 16- and 8-bit floats, where activations may be rounded: a tile of the cache
// becomes codes of 16 bits, of which one instruction multiplies two to a lane. That is twice what float32 does.
//
// Sums are exact integers of 32 bits. For that, a query's or key's codes are at most 32767 and their norm is at most
// kMostNorm, as a product of two vectors is at most that of their norms (Cauchy, Schwarz); a value's codes are at most
// kMostValue, and a row's weights of a tile, times the values' scales, have codes whose sum is at most kMostWeight. So
// keys, queries and values keep 12 to 14 bits. Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_floats.hpp"

namespace modulm::MODULM_ISA {
namespace {

#if defined(__x86_64__)
constexpr bool kWordsPay = true;
#else
constexpr bool kWordsPay = false;  // no instruction that multiplies and adds two to a lane
#endif

// Rounding adds up to half of the root of kLargestHead to a norm, and to half of kTile to a sum.
constexpr float kMostCode = 32767.0f, kMostNorm = 46300.0f, kMostValue = 8191.0f, kMostWeight = 262000.0f;

// For a query: what code 1 stands for, and its inverse.
inline Codes16 codes_of(const float* numbers, int64_t size) {
  float squares = 0.0f;
  for (int64_t d = 0; d < size; ++d) squares += numbers[d] * numbers[d];
  const float most = largest_magnitude(numbers, size), of_norm = sqrtf(squares) / kMostNorm, of_most = most / kMostCode;
  return {most, of_norm > of_most ? of_norm : of_most};
}

// sum[r][j] += products of words(j) with the factors of row r.
template <int kRows, int kVectors, class Words>
inline void add_words(Ints (&sum)[kRows][kVectors], const int32_t* factors, int64_t stride, const Words& words) {
  Ints word[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) word[j] = words(j);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Ints factor = all_ints(factors[r * stride]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[r][j] = add_products(sum[r][j], word[j], factor);
  }
}

// GCC keeps sums in registers while they are added up if nothing but this is done with them afterwards.
template <int kRows, int kVectors>
inline void leave(const Ints (&sum)[kRows][kVectors], int32_t (&to)[kRows][kVectors * kLanes]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) store_ints(to[r] + j * kLanes, sum[r][j]);
  }
}

// scores[r][lane of v] = factors[r] * scales[lane of v] * sum over words of query r * keys[word][lane of v], for vectors
// begin <= v < end of a tile. Queries are [words / kLanes][kRows][kLanes].
template <int kRows>
[[gnu::noinline]] void words_times_keys(const int32_t* queries, const float* factors, const int32_t* keys,
                                        const float* scales, int64_t words, int begin, int end, float* scores) {
  constexpr int kVectors = kWidth<kRows>;
  for (int v = begin / kVectors * kVectors; v < end; v += kVectors) {
    Ints sum[kRows][kVectors];
    fill(sum, all_ints(0));
    const int32_t* key = keys + v * kLanes;
    for (int64_t w = 0; w < words; w += kLanes) {
      const int32_t* some = queries + w * kRows;
      const int count = words - w < kLanes ? int(words - w) : kLanes;
      for (int i = 0; i < count; ++i, key += kTile) {
        add_words(sum, some + i, kLanes, [=](int j) { return load_ints(key + j * kLanes); });
      }
    }
    alignas(64) int32_t whole[kRows][kVectors * kLanes];
    leave(sum, whole);
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) {
        const Vec scale = load(scales + (v + j) * kLanes) * all(factors[r]);
        store(scores + r * kSpan + (v + j) * kLanes, to_floats(load_ints(whole[r] + j * kLanes)) * scale);
      }
    }
  }
}

// sums[r] += factors[r] * sum over words begin <= w < end of the codes of row r * values. Rows are `width` numbers.
template <int kRows, int kVectors>
[[gnu::noinline]] void add_words_of(const int32_t* codes, const float* factors, const int32_t* values, int begin, int end,
                                    float* sums, int64_t width) {
  Ints sum[kRows][kVectors];
  fill(sum, all_ints(0));
  const int32_t* value = values + begin * width;
  for (int w = begin; w < end; ++w, value += width) {
    add_words(sum, codes + w, kSpan, [=](int j) { return load_ints(value + j * kLanes); });
  }
  alignas(64) int32_t whole[kRows][kVectors * kLanes];
  leave(sum, whole);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      float* to = sums + r * width + j * kLanes;
      store(to, fma(to_floats(load_ints(whole[r] + j * kLanes)), all(factors[r]), load(to)));
    }
  }
}

// See `ByteProducts` in `attention_bytes.hpp`, which has the same members.
template <class T>
class WordProducts {
 public:
  using Number = T;

  WordProducts(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const Room& room)
      : tile_(call, unit, kv_head, room), room_(room), words_((call.head_size + 1) / 2) {}

  int64_t span() const { return kTile; }

  void set_query(const Panel& part, int r, const float* numbers) {
    const Codes16 rule = codes_of(numbers, room_.width);
    room_.factors[part.begin + r] = rule.one;
    alignas(64) int16_t codes[kLargestHead + 2 * kLanes] = {};
    for (int64_t d = 0; d < room_.width; d += kLanes) rule.store(load(numbers + d), codes + d);
    int32_t* to = as_codes(room_.queries) + part.begin * room_.width + r * kLanes;
    for (int64_t w = 0; w < words_; w += kLanes) __builtin_memcpy(to + w * part.rows, codes + 2 * w, kLanes * 4);
  }

  void find(int64_t start, int64_t begin, int64_t end) {
    tile_.find(start, begin, end);
    code_keys();
    code_values(int(begin - start), int(end - start));
  }

  template <int kRows>
  void score(int64_t row, int begin, int end, const Ahead&, Sweep&) const {
    words_times_keys<kRows>(as_codes(room_.queries) + row * room_.width, room_.factors + row, as_codes(room_.keys),
                            key_scales_, words_, begin, end, room_.scores);
  }

  template <int kRows>
  void add(int64_t row, int64_t, int begin, int end, const Ahead&, Sweep&) const {
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) factors[r] = weights_to_codes(room_.scores + r * kSpan, begin, end);
    const int32_t *codes = as_codes(room_.scores), *values = as_codes(room_.values);
    float* sums = room_.sums + row * room_.width;
    constexpr int kVectors = kWidth<kRows>;
    int64_t d = 0;
    for (; d + kVectors * kLanes <= room_.width; d += kVectors * kLanes) {
      add_words_of<kRows, kVectors>(codes, factors, values + d, begin / 2, (end + 1) / 2, sums + d, room_.width);
    }
    for (; d < room_.width; d += kLanes) {
      add_words_of<kRows, 1>(codes, factors, values + d, begin / 2, (end + 1) / 2, sums + d, room_.width);
    }
  }

 private:
  static int32_t* as_codes(float* memory) { return reinterpret_cast<int32_t*>(memory); }
  // float32 [head_size, kTile] -> words [head_size / 2, kTile], in place; lanes that hold no key of the tile hold anything.
  void code_keys() {
    const int64_t size = tile_.head_size();
    for (int lane = 0; lane < kTile; lane += kLanes) {
      const float* from = room_.keys + lane;
      int32_t* to = as_codes(room_.keys) + lane;
      Ints bits = all_ints(0);
      Vec squares = all(0.0f);
      for (int64_t d = 0; d < size; ++d) {
        const Vec number = load(from + d * kTile);
        bits = larger(magnitude_bits(number), bits);
        squares = fma(number, number, squares);
      }
      const Vec most = as_floats(bits);  // the second operand below, which counts if it is not a number
      const Vec unit = larger(square_root(squares) * all(1.0f / kMostNorm), most * all(1.0f / kMostCode));
      const Vec inverse = where_less(most, all(0x1p-100f), all(0.0f), all(1.0f) / unit);
      store(key_scales_ + lane, where_less(most, all(0x1p-100f), all(0.0f), unit));
      for (int64_t d = 0; d < size; d += 2) {
        const Vec second = d + 1 < size ? load(from + (d + 1) * kTile) : all(0.0f);
        const Ints codes = nearest(load(from + d * kTile) * inverse);
        store_ints(to + d / 2 * kTile, beside(codes, nearest(second * inverse)));
      }
    }
  }

  // float32 [kTile, width] -> words [kTile / 2, width], in place; positions outside of begin .. end - 1 become 0.
  void code_values(int begin, int end) {
    const int64_t width = room_.width;
    for (int t = begin / 2 * 2; t < end; t += 2) {
      float inverse[2];
      for (int i = 0; i < 2; ++i) {
        const bool is_there = t + i >= begin && t + i < end;
        const float most = is_there ? largest_magnitude(room_.values + (t + i) * width, width) : 0.0f;
        const Codes16 rule(most, most / kMostValue);
        value_scales_[t + i] = rule.one;
        inverse[i] = rule.inverse;
      }
      const float* from = room_.values + t * width;
      int32_t* to = as_codes(room_.values) + t / 2 * width;
      for (int64_t d = 0; d < width; d += kLanes) {
        const Ints codes = nearest(load(from + d) * all(inverse[0]));
        store_ints(to + d, beside(codes, nearest(load(from + width + d) * all(inverse[1]))));
      }
    }
  }

  // Returns what code 1 stands for. What a row does not see has the weight zero; its scale may be anything.
  float weights_to_codes(float* weights, int begin, int end) const {
    const int first = begin / kLanes, last = (end - 1) / kLanes;
    Vec most = all(0.0f), total = all(0.0f), scaled[kTileVectors];
    for (int v = first; v <= last; ++v) {
      const Vec weight = load(weights + v * kLanes);
      scaled[v] = where_less(all(0.0f), weight, weight * load(value_scales_ + v * kLanes), all(0.0f));
      most = larger(scaled[v], most);
      total = total + scaled[v];
    }
    const float largest = largest_of(most), of_most = largest / kMostCode, of_sum = sum_of(total) / kMostWeight;
    const Codes16 rule(largest, of_sum > of_most ? of_sum : of_most);
    int16_t* to = reinterpret_cast<int16_t*>(weights);
    for (int v = first; v <= last; ++v) rule.store(scaled[v], to + v * kLanes);
    return rule.one;
  }

  FloatProducts<T> tile_;
  const Room& room_;
  const int64_t words_;
  float key_scales_[kTile], value_scales_[kTile];
};

}  // namespace
}  // namespace modulm::MODULM_ISA
