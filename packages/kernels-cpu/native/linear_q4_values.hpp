// What 4-bit weights stand for, in vectors of 16 rows: numbers of codes, scales, minimums. Included by kernels of the
// namespace `amx` only.
#pragma once

#include <immintrin.h>

#include <cmath>

#include "lanes.hpp"
#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

// What 16 codes stand for, before scales: numbers of few bits where there are such, in units of `weight.step`.
struct Table {
  alignas(64) float numbers[16];
  bool are_exact;  // products with all scales fit bfloat16

  explicit Table(const Q4View& weight) {
    const bool is_codebook = weight.kind == Q4Kind::codebook;
    const uint32_t rest = weight.scale_type == ScaleType::f16_byte ? 0xfffffu : 0xffffu;
    are_exact = is_codebook && weight.scale_type >= ScaleType::f16_byte;
    for (int code = 0; code < 16; ++code) {
      const float value = weight.values[code], steps = float(weight.steps[code]);
      const bool is_whole = std::fabs(steps * weight.step - value) <= 0x1p-20f * std::fabs(value);
      numbers[code] = !is_codebook ? float(code) : is_whole ? steps : value / weight.step;
      are_exact &= (__builtin_bit_cast(uint32_t, numbers[code]) & rest) == 0;
    }
  }
};

inline __m512i of_bytes(const uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline Vec scales_at(const uint8_t* from, ScaleType type) {
  switch (type) {
    case ScaleType::f32: return load(reinterpret_cast<const float*>(from));
    case ScaleType::f16: return load(reinterpret_cast<const Half*>(from));
    case ScaleType::f16_byte: return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_slli_epi32(of_bytes(from), 7)));
    case ScaleType::exponent: break;
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(of_bytes(from), 23));
}

// Minimums of a group whose head is at `head`.
inline Vec minimums_at(const Q4View& weight, const uint8_t* head) {
  const uint8_t* at = head + weight.scale_bytes();
  if (!weight.zero_points) return scales_at(at, weight.scale_type);
  return scales_at(head, weight.scale_type) * -_mm512_cvtepi32_ps(of_bytes(at));
}

}  // namespace
}  // namespace modulm::MODULM_ISA
