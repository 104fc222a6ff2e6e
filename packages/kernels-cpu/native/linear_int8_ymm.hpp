// Integers of `kernels/linear_int8.cpp` in 256 bits, but for their products, in which AVX2 and AVX-VNNI differ.
#pragma once

#include "integer_lanes.hpp"
#include "linear_int8.hpp"

namespace modulm::MODULM_ISA {
namespace {

inline Ints load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store_bytes(uint8_t* to, Ints value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
inline Ints all_bytes(int value) { return _mm256_set1_epi8(char(value)); }
inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
template <int bits>  // to the left where negative
inline Ints shifted_right(Ints a) {
  if constexpr (bits > 0) return _mm256_srli_epi32(a, bits);
  if constexpr (bits < 0) return _mm256_slli_epi32(a, -bits);
  return a;
}
inline Ints minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }

inline Ints bytes_of_table(const uint8_t* table, Ints places) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), places);
}

inline Ints four_inputs(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

}  // namespace
}  // namespace modulm::MODULM_ISA
