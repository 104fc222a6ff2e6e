// Vectors of 32-bit integers, and sums of products of 16-bit ones, two to a lane.
//
// Included only by files that are compiled once per instruction set: everything here lives in that namespace.
#pragma once

#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

#if defined(__AVX512F__)

using Ints = __m512i;

inline Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x); }
inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints nearest(Vec x) { return _mm512_cvtps_epi32(x); }
inline Ints low_bytes(Ints x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
inline Ints high_bytes(Ints x) { return _mm512_srai_epi16(x, 8); }
inline Ints add_products(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline Ints paired(Ints x) {
  const Ints other = _mm512_slli_epi32(_mm512_shuffle_epi32(x, _MM_PERM_BADC), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, x, other);
}
inline Ints beside(Ints low, Ints high) { return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16)); }
inline void store_shorts(int16_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
inline Ints magnitude_bits(Vec x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
inline Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline Vec as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }

#elif defined(__AVX2__)

using Ints = __m256i;

inline Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_ints(void* p, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints nearest(Vec x) { return _mm256_cvtps_epi32(x); }
inline Ints low_bytes(Ints x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
inline Ints high_bytes(Ints x) { return _mm256_srai_epi16(x, 8); }
inline Ints add_products(Ints sum, Ints a, Ints b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
inline Ints paired(Ints x) {
  return _mm256_blend_epi16(x, _mm256_slli_epi32(_mm256_shuffle_epi32(x, 0x4e), 16), 0xaa);
}
inline Ints beside(Ints low, Ints high) { return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa); }
inline void store_shorts(int16_t* p, Ints x) {
  const Ints halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, x), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(halves));
}
inline Ints magnitude_bits(Vec x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
inline Ints larger(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline Vec as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }

#else

using Ints = Bits;
typedef int16_t Shorts __attribute__((vector_size(16)));

inline Ints load_ints(const void* p) {
  Ints x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store_ints(void* p, Ints x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline Ints all_ints(int32_t x) { return Ints{x, x, x, x}; }
inline Vec to_floats(Ints x) { return __builtin_convertvector(x, Vec); }
inline Ints nearest(Vec x) {
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: the nearest integer falls into the low bits
  return (Ints)((x == x ? x : all(0.0f)) + magic) - (Ints)magic;
}
inline Ints low_bytes(Ints x) { return (Ints)((Shorts)((Shorts)x << 8) >> 8); }
inline Ints high_bytes(Ints x) { return (Ints)((Shorts)x >> 8); }
inline Ints add_products(Ints sum, Ints a, Ints b) {
#if defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}
inline Ints paired(Ints x) { return (x & 0xffff) | (Ints{x[2], x[3], x[0], x[1]} << 16); }
inline Ints beside(Ints low, Ints high) { return (low & 0xffff) | (high << 16); }
inline void store_shorts(int16_t* p, Ints x) {
  for (int i = 0; i < kLanes; ++i) p[i] = int16_t(x[i]);
}
inline Ints magnitude_bits(Vec x) { return (Ints)x & 0x7fffffff; }
inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }
inline Vec as_floats(Ints bits) { return (Vec)bits; }

#endif

// Above: `low_bytes` and `high_bytes` widen every other byte to 16 bits. `add_products` adds to each lane of `sum` its
// two products of 16-bit numbers. `paired` leaves, of each 4 numbers that fit into 16 bits, the first and third in one
// lane, the second and fourth in the next, and nothing of use in the other two: the factors for 4 bytes of a lane.
// `nearest` leaves zeros in the low 16 bits for what is not finite. `beside` makes words of two numbers that fit into 16
// bits; `magnitude_bits` compare as magnitudes do, where NaN is
// larger than infinity and that larger than all numbers.

constexpr int kQuad = 4;  // bytes of a lane

// How floats of a given magnitude become codes of 16 bits: `one` is what code 1 stands for, and infinite where the
// magnitude is.
struct Codes16 {
  float one, inverse;

  explicit Codes16(float largest)
      : one(largest < 0x1p-100f ? 0.0f : largest / 32767.0f), inverse(one == 0.0f ? 0.0f : 32767.0f / largest) {}

  // With `unit` for what code 1 stands for, if not all is zero.
  Codes16(float largest, float unit)
      : one(largest < 0x1p-100f ? 0.0f : unit), inverse(one == 0.0f ? 0.0f : 1.0f / unit) {}

  // kLanes numbers as factors for quads of bytes: those of quad i are to[4 * i] and to[4 * i + 1].
  void store(Vec numbers, int32_t* to) const { store_ints(to, paired(nearest(numbers * all(inverse)))); }

  // kLanes numbers as they follow each other.
  void store(Vec numbers, int16_t* to) const { store_shorts(to, nearest(numbers * all(inverse))); }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
