// The vectors of `kernels/linear_q4.cpp` on AVX-512 with VNNI: 16 rows, `vpdpbusd` adds 4 products to each lane.
#pragma once

#include <immintrin.h>

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 16;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 2;  // an input is broadcast once for both

using Floats = __m512;
using Ints = __m512i;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }

inline Floats load_scales(const uint8_t* from, bool half) {
  if (half) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_loadu_ps(reinterpret_cast<const float*>(from));
}

inline Ints load_nibbles(const uint8_t* from) { return _mm512_loadu_si512(from); }

// Input `byte` of the 4 low (`high` 0) or high nibbles of each lane.
inline Floats code(Ints nibbles, int high, int byte) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(nibbles, unsigned(8 * byte + 4 * high)),
                                             _mm512_set1_epi32(15)));
}

struct ValueTable {
  __m512 values;
  explicit ValueTable(const float* from) : values(_mm512_loadu_ps(from)) {}
  Floats operator()(Ints nibbles, int high, int byte) const {  // vpermps looks at 4 bits only
    return _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, unsigned(8 * byte + 4 * high)), values);
  }
};

inline Ints activation(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// For each of T tokens, the sum of a unit's products in every row. Codebooks hold signed steps, and `vpdpbusd` wants
// unsigned bytes: 128 is added to them and 128 times the sum of the activations' codes taken away before.
template <Q4Kind kKind>
struct UnitSums {
  __m512i steps;
  int32_t offset;

  explicit UnitSums(const Q4View& weight) : offset(kKind == Q4Kind::codebook ? 128 : weight.offset) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight.steps));
    steps = _mm512_xor_si512(_mm512_broadcast_i32x4(table), _mm512_set1_epi8(char(0x80)));
  }

  template <int kUnit, int T>
  inline void operator()(const uint8_t* nibbles, const int8_t* x, const int32_t* code_sums, Ints (&sums)[T]) const {
    of_blocks<kUnit>(nibbles, 0, x, code_sums, reinterpret_cast<Ints(&)[1][T]>(sums));
  }

  // The same of several blocks, `stride` bytes apart.
  template <int kUnit, int kBlocks, int T>
  inline void of_blocks(const uint8_t* nibbles, int64_t stride, const int8_t* x, const int32_t* code_sums,
                        Ints (&sums)[kBlocks][T]) const {
    for (int t = 0; t < T; ++t) {
      const Ints start = kKind == Q4Kind::minimums ? _mm512_setzero_si512()
                                                   : _mm512_set1_epi32(-offset * code_sums[t]);
      for (int b = 0; b < kBlocks; ++b) sums[b][t] = start;
    }
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < kUnit / 8; ++j) {
      Ints codes[2][kBlocks];
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) {
        const __m512i raw = load_nibbles(nibbles + b * stride + 64 * j);
        codes[0][b] = _mm512_and_si512(raw, mask);
        codes[1][b] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
        if constexpr (kKind == Q4Kind::codebook) {
          codes[0][b] = _mm512_shuffle_epi8(steps, codes[0][b]);
          codes[1][b] = _mm512_shuffle_epi8(steps, codes[1][b]);
        }
      }
#pragma GCC unroll 2
      for (int high = 0; high < 2; ++high) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Ints four = activation(x + t * kUnit + 8 * j + 4 * high);
#pragma GCC unroll 2
          for (int b = 0; b < kBlocks; ++b) sums[b][t] = _mm512_dpbusd_epi32(sums[b][t], codes[high][b], four);
        }
      }
    }
  }

  // The same of one quad set apart, which lies in the low (`high` 0) or high nibbles.
  inline Ints quad_products(const uint8_t* nibbles, int high, const HighQuad& x) const {
    __m512i code = _mm512_srl_epi16(load_nibbles(nibbles), _mm_cvtsi32_si128(4 * high));
    code = _mm512_and_si512(code, _mm512_set1_epi8(15));
    if constexpr (kKind == Q4Kind::codebook) code = _mm512_shuffle_epi8(steps, code);
    const __m512i start = kKind == Q4Kind::minimums ? _mm512_setzero_si512() : _mm512_set1_epi32(-offset * x.sum);
    return _mm512_dpbusd_epi32(start, code, activation(x.codes));
  }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
