// Vectors of float32 as wide as the instruction set has them, and the few operations that kernels write with them.
//
// Included only by files that are compiled once per instruction set: everything here lives in that namespace.
#pragma once

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "storage.hpp"

namespace modulm::MODULM_ISA {
namespace {

#if defined(__AVX512F__)

using Vec = __m512;
constexpr int kLanes = 16;

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const Brain* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load(const E5M2* p) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_slli_epi16(codes, 8));
}
// See `e4m3_to_f16_bits`; the sign, which fills the upper bits, is shifted into two.
inline Vec load(const E4M3* p) {
  const __m256i ones = _mm256_set1_epi16(0x7f);
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i none = _mm256_cmpeq_epi16(_mm256_and_si256(codes, ones), ones);
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(int16_t(0xbfff)));
  return _mm512_cvtph_ps(_mm256_or_si256(halves, none));
}
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec all(float x) { return _mm512_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand where one of them is not a number.
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec square_root(Vec x) { return _mm512_sqrt_ps(x); }
inline Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
inline Vec lane_numbers() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
// x times two to the power that stands in the low bits of `power`.
inline Vec shift_exponent(Vec x, Vec power) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(power), 23)));
}
inline float sum_of(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(Vec x) { return _mm512_reduce_max_ps(x); }

#elif defined(__AVX2__)

using Vec = __m256;
constexpr int kLanes = 8;

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load(const Brain* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load(const E5M2* p) {
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load(const E4M3* p) {
  const __m128i ones = _mm_set1_epi16(0x7f);
  const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i none = _mm_cmpeq_epi16(_mm_and_si128(codes, ones), ones);
  const __m128i halves = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(int16_t(0xbfff)));
  return _mm256_cvtph_ps(_mm_or_si128(halves, none));
}
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec all(float x) { return _mm256_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec square_root(Vec x) { return _mm256_sqrt_ps(x); }
inline Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline Vec lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
inline Vec shift_exponent(Vec x, Vec power) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(power), 23)));
}
inline __m128 halves_added(Vec x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
inline float sum_of(Vec x) {
  __m128 four = halves_added(x);
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest_of(Vec x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

#else  // four lanes in the compiler's own notation

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Bits __attribute__((vector_size(16)));
constexpr int kLanes = 4;

inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline Vec all(float x) { return Vec{x, x, x, x}; }
#if defined(__aarch64__)
inline Vec load(const Half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}
inline Vec load(const Brain* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
}
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
#else
inline Vec load(const Half* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline Vec load(const Brain* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif
inline Vec load(const E5M2* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline Vec load(const E4M3* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }
inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
inline Vec square_root(Vec x) { return Vec{sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])}; }
inline Vec where_less(Vec a, Vec b, Vec yes, Vec no) { return a < b ? yes : no; }
inline Vec lane_numbers() { return Vec{0, 1, 2, 3}; }
inline Vec shift_exponent(Vec x, Vec power) { return (Vec)((Bits)x + ((Bits)power << 23)); }
inline float sum_of(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float largest_of(Vec x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}

#endif

constexpr float kLog2e = 1.44269504088896341f;

// The first `count` of kLanes numbers, the others zero.
inline Vec load_first(const float* p, int64_t count) {
  float numbers[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) numbers[i] = p[i];
  return load(numbers);
}

inline void store_first(float* p, Vec x, int64_t count) {
  float numbers[kLanes];
  store(numbers, x);
  for (int64_t i = 0; i < count; ++i) p[i] = numbers[i];
}

// Lanes first <= i < end of x, the others of `other`.
inline Vec keep_lanes(Vec x, int first, int end, Vec other) {
  const Vec number = lane_numbers();
  return where_less(number, all(float(end)), where_less(number, all(float(first)), other, x), other);
}

// 2^f for -0.5 <= f <= 0.5: minimax polynomial, relative error 2e-9 before rounding.
inline Vec exp2_of_fraction(Vec f) {
  Vec p = all(0.000153458110f);
  p = fma(p, f, all(0.00133999309f));
  p = fma(p, f, all(0.00961848907f));
  p = fma(p, f, all(0.0555032864f));
  p = fma(p, f, all(0.240226462f));
  p = fma(p, f, all(0.693147182f));
  return fma(p, f, all(1.0f));
}

// 2^x to 1.5e-7 of it; exactly 1 at 0, 0 below -126, 2^127.9 above that, not a number where x is none.
inline Vec exp2_of(Vec x) {
#if defined(__AVX512F__)
  const Vec bounded = smaller(all(127.9f), x);
  const Vec f = _mm512_reduce_ps(bounded, 0);  // what is over the nearest integer
  const __mmask16 counts = _mm512_cmp_ps_mask(x, all(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(counts, exp2_of_fraction(f), bounded - f);
#else
  const Vec bounded = smaller(all(127.9f), larger(all(-127.0f), x));
  const Vec shifted = bounded + all(12582912.0f);  // 1.5 * 2^23: the nearest integer falls into the low bits
  const Vec p = exp2_of_fraction(bounded - (shifted - all(12582912.0f)));
  return where_less(x, all(-126.0f), all(0.0f), shift_exponent(p, shifted));
#endif
}

inline float exp2_of(float x) {
  float numbers[kLanes];
  store(numbers, exp2_of(all(x)));
  return numbers[0];
}

// tanh to 2e-7: Moshier's polynomial (Cephes, tanhf) near 0, where 1 - 2 / (exp(2x) + 1) would cancel.
inline Vec tanh_of(Vec x) {
  const Vec z = x * x;
  Vec p = all(-5.70498872745e-3f);
  p = fma(p, z, all(2.06390887954e-2f));
  p = fma(p, z, all(-5.37397155531e-2f));
  p = fma(p, z, all(1.33314422036e-1f));
  p = fma(p, z, all(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec far = all(1.0f) - all(2.0f) / (exp2_of(x * all(2.0f * kLog2e)) + all(1.0f));
  return where_less(z, all(0.390625f), near, far);
}

// x / (1 + exp(-x))
inline Vec silu_of(Vec x) { return x / (all(1.0f) + exp2_of(x * all(-kLog2e))); }

// x / 2 * (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is x / (1 + exp(-2u))
inline Vec gelu_tanh_of(Vec x) {
  const Vec u = x * fma(x * x, all(0.0356774081f), all(0.797884561f));
  return x / (all(1.0f) + exp2_of(u * all(-2.0f * kLog2e)));
}

// x / 2 * (1 + erf(x / sqrt(2))); lane by lane, as few models ask for it
inline Vec gelu_of(Vec x) {
  float numbers[kLanes];
  store(numbers, x);
  for (float& number : numbers) number = 0.5f * number * (1.0f + erff(number * 0.707106781f));
  return load(numbers);
}

// max(x, 0); not a number where x is none
inline Vec relu_of(Vec x) { return larger(all(0.0f), x); }

}  // namespace
}  // namespace modulm::MODULM_ISA
