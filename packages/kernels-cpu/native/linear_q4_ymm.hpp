// The vectors of `kernels/linear_q4.cpp` in 256 bits, but for products of bytes, in which AVX2 and AVX-VNNI differ.
#pragma once

#include <immintrin.h>

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

using Floats = __m256;
using Ints = __m256i;

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }

inline Floats load_scales(const uint8_t* from, ScaleType type) {
  if (type == ScaleType::f16) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  if (type == ScaleType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  if (type == ScaleType::f16_byte) return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23));
}

inline Floats load_bytes(const uint8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

inline Ints load_nibbles(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Input `byte` of the 4 low (`high` 0) or high nibbles of each lane.
inline Floats code(Ints nibbles, int high, int byte) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(nibbles, 8 * byte + 4 * high), _mm256_set1_epi32(15)));
}

struct ValueTable {
  __m256 first, second;
  explicit ValueTable(const float* from) : first(_mm256_loadu_ps(from)), second(_mm256_loadu_ps(from + 8)) {}
  Floats operator()(Ints nibbles, int high, int byte) const {  // vpermps looks at 3 bits; the fourth chooses the half
    const __m256i index = _mm256_srli_epi32(nibbles, 8 * byte + 4 * high);
    const __m256 choice = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, index), _mm256_permutevar8x32_ps(second, index), choice);
  }
};

inline Ints activation(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

// The codes of one quad, which lies in the low (`high` 0) or high nibbles.
inline Ints quad_codes(const uint8_t* nibbles, int high) {
  const __m256i shifted = _mm256_srl_epi16(load_nibbles(nibbles), _mm_cvtsi32_si128(4 * high));
  return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

}  // namespace
}  // namespace modulm::MODULM_ISA
