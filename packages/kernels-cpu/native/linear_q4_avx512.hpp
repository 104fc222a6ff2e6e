// The vectors of `kernels/linear_q4.cpp` on AVX-512 with VNNI: 16 rows, `vpdpbusd` adds 4 products to each lane.
#pragma once

#include <immintrin.h>

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 16;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 2;  // an input is broadcast once for both
constexpr bool kSignedCodes = false;

using Floats = __m512;
using Ints = __m512i;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }

inline Floats load_scales(const uint8_t* from, ScaleType type) {
  if (type == ScaleType::f16) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  if (type == ScaleType::f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(from));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if (type == ScaleType::f16_byte) return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
}

inline Floats load_bytes(const uint8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
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

inline Ints low_codes(Ints raw) { return _mm512_and_si512(raw, _mm512_set1_epi8(15)); }
inline Ints high_codes(Ints raw) { return low_codes(_mm512_srli_epi16(raw, 4)); }
inline Ints quad_codes(const uint8_t* nibbles, int high) {
  return low_codes(_mm512_srl_epi16(load_nibbles(nibbles), _mm_cvtsi32_si128(4 * high)));
}
inline Ints all_ints(int32_t value) { return _mm512_set1_epi32(value); }

inline Ints dot(Ints sum, Ints codes, Ints four) { return _mm512_dpbusd_epi32(sum, codes, four); }
template <int quad>
inline Ints dot_quad(Ints sum, Ints codes, const int8_t* x) { return dot(sum, codes, activation(x + 4 * quad)); }

struct StepTable {
  __m512i steps;
  explicit StepTable(const int8_t* from) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    steps = _mm512_xor_si512(_mm512_broadcast_i32x4(table), _mm512_set1_epi8(char(0x80)));
  }
  Ints operator()(Ints codes) const { return _mm512_shuffle_epi8(steps, codes); }
};

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_q4_dot.hpp"
