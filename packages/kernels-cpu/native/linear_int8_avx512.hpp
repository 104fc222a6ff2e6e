// Integers of `kernels/linear_int8.cpp` on AVX-512 with VNNI: 16 rows, `vpdpbusd` adds 4 products to each lane.
#pragma once

#include "integer_lanes.hpp"
#include "linear_int8.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr bool kSignedBytes = false;  // AVX2 takes codes of 8 bits as signed, 128 less than they are
constexpr int kIntTile = 6;     // tokens: 12 sums of integers, 12 of floats
constexpr int int_vectors_for(int) { return 2; }  // vectors of rows for so many tokens

inline Ints load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline void store_bytes(uint8_t* to, Ints value) { _mm512_storeu_si512(to, value); }
inline Ints all_bytes(int value) { return _mm512_set1_epi8(char(value)); }
inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int bits>  // to the left where negative
inline Ints shifted_right(Ints a) {
  if constexpr (bits > 0) return _mm512_srli_epi32(a, bits);
  if constexpr (bits < 0) return _mm512_slli_epi32(a, -bits);
  return a;
}
inline Ints minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }

inline Ints four_inputs(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

inline Ints bytes_of_table(const uint8_t* table, Ints places) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), places);
}

template <Codes>
inline Ints taken(Ints code) { return code; }
inline Ints dot(Ints sum, Ints code, Ints four) { return _mm512_dpbusd_epi32(sum, code, four); }
template <int quad>
inline Ints dot_quad(Ints sum, Ints code, const int8_t* x) { return dot(sum, code, four_inputs(x + 4 * quad)); }

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_int8_dot.hpp"
