// The vectors of `kernels/linear_q4.cpp` on AVX2: 8 rows; `vpmaddubsw` multiplies unsigned by signed bytes, adds pairs.
#pragma once

#include "linear_q4_ymm.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 1;

// Keeps the compiler from turning a chain of additions into a tree, whose branches do not fit in 16 registers.
inline void in_this_order(Ints& sum) { asm("" : "+x"(sum)); }

// For each of T tokens, the sum of a unit's products in every row.
template <Q4Kind kKind>
struct UnitSums {
  int32_t offset;

  explicit UnitSums(const Q4View& weight) : offset(weight.offset) {}

  template <int kUnit, int T>
  inline void operator()(const uint8_t* nibbles, const int8_t* x, const int32_t* code_sums, Ints* sums) const {
    __m256i shorts[T];
    for (int t = 0; t < T; ++t) shorts[t] = _mm256_setzero_si256();
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < kUnit / 8; ++j) {
      const __m256i raw = load_nibbles(nibbles + 32 * j);
      const __m256i low = _mm256_and_si256(raw, mask), high = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
      // 15 * 127 * 2 * 8 = 30,480: a whole unit fits in 16 bits.
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const int8_t* four = x + t * kUnit + 8 * j;
        shorts[t] = _mm256_add_epi16(shorts[t], _mm256_maddubs_epi16(low, activation(four)));
        in_this_order(shorts[t]);
        shorts[t] = _mm256_add_epi16(shorts[t], _mm256_maddubs_epi16(high, activation(four + 4)));
        in_this_order(shorts[t]);
      }
    }
    for (int t = 0; t < T; ++t) {
      sums[t] = _mm256_madd_epi16(shorts[t], _mm256_set1_epi16(1));
      if (kKind == Q4Kind::offset) {
        sums[t] = _mm256_sub_epi32(sums[t], _mm256_set1_epi32(offset * code_sums[t]));
      }
    }
  }

  // The same of one quad set apart.
  inline Ints quad_products(const uint8_t* nibbles, int high, const HighQuad& x) const {
    const __m256i pairs = _mm256_maddubs_epi16(quad_codes(nibbles, high), activation(x.codes));
    const __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return kKind == Q4Kind::offset ? _mm256_sub_epi32(sum, _mm256_set1_epi32(offset * x.sum)) : sum;
  }
};

// A codebook's steps are signed: |step| times the activation with the step's sign. Two such products (127 * 127 * 2)
// are all that 16 bits hold.
template <>
struct UnitSums<Q4Kind::codebook> {
  __m256i steps;

  explicit UnitSums(const Q4View& weight)
      : steps(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weight.steps)))) {}

  template <int kUnit, int T>
  inline void operator()(const uint8_t* nibbles, const int8_t* x, const int32_t*, Ints* sums) const {
    for (int t = 0; t < T; ++t) sums[t] = _mm256_setzero_si256();
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < kUnit / 8; ++j) {
      const __m256i raw = load_nibbles(nibbles + 32 * j);
      const __m256i nibble[2] = {_mm256_and_si256(raw, mask), _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask)};
#pragma GCC unroll 2
      for (int high = 0; high < 2; ++high) {
        const __m256i step = _mm256_shuffle_epi8(steps, nibble[high]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          sums[t] = _mm256_add_epi32(sums[t], step_products(step, activation(x + t * kUnit + 8 * j + 4 * high)));
        }
      }
    }
  }

  inline Ints quad_products(const uint8_t* nibbles, int high, const HighQuad& x) const {
    return step_products(_mm256_shuffle_epi8(steps, quad_codes(nibbles, high)), activation(x.codes));
  }

 private:
  static inline Ints step_products(Ints step, Ints x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(step), _mm256_sign_epi8(x, step));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
