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
  return (Ints)(x + magic) - (Ints)magic;
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

#endif

// Above: `low_bytes` and `high_bytes` widen every other byte to 16 bits. `add_products` adds to each lane of `sum` its
// two products of 16-bit numbers. `paired` leaves, of each 4 numbers that fit into 16 bits, the first and third in one
// lane, the second and fourth in the next, and nothing of use in the other two: the factors for 4 bytes of a lane.

constexpr int kQuad = 4;  // bytes of a lane

// How floats of a given magnitude become codes of 16 bits: `one` is what code 1 stands for, and infinite where the
// magnitude is.
struct Codes16 {
  float one, inverse;

  explicit Codes16(float largest)
      : one(largest < 0x1p-100f ? 0.0f : largest / 32767.0f), inverse(one == 0.0f ? 0.0f : 32767.0f / largest) {}

  // kLanes numbers as factors for quads of bytes: those of quad i are to[4 * i] and to[4 * i + 1].
  void store(Vec numbers, int32_t* to) const { store_ints(to, paired(nearest(numbers * all(inverse)))); }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
