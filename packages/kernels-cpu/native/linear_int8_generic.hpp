// Integers of `kernels/linear_int8.cpp` in the compiler's own vectors of 4 lanes; on x86 with SSE's `pmaddwd`.
#pragma once

#include "lanes.hpp"
#include "linear_int8.hpp"

namespace modulm::MODULM_ISA {
namespace {

typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Unsigned __attribute__((vector_size(16)));
constexpr bool kSignedBytes = false;  // AVX2 takes codes of 8 bits as signed, 128 less than they are
constexpr int kIntTile = 4;
// Vectors of rows for so many tokens. One token reads whole cache lines in order: memory is what it waits for.
constexpr int int_vectors_for(int tokens) { return tokens == 1 ? 8 : tokens == 2 ? 4 : 1; }

inline Ints load_bytes(const uint8_t* from) {
  Ints value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
inline void store_bytes(uint8_t* to, Ints value) { __builtin_memcpy(to, &value, sizeof(value)); }
inline Ints all_ints(int32_t value) { return Ints{value, value, value, value}; }
inline Ints all_bytes(int value) { return all_ints(int32_t(uint32_t(value & 255) * 0x01010101u)); }
inline Ints both(Ints a, Ints b) { return a & b; }
inline Ints either(Ints a, Ints b) { return a | b; }
inline Ints minus(Ints a, Ints b) { return a - b; }
template <int bits>  // to the left where negative
inline Ints shifted_right(Ints a) {
  if constexpr (bits > 0) return Ints(Unsigned(a) >> bits);
  if constexpr (bits < 0) return Ints(Unsigned(a) << -bits);
  return a;
}
inline Vec to_floats(Ints a) { return __builtin_convertvector(a, Vec); }

inline Ints bytes_of_table(const uint8_t* table, Ints places) {
#if defined(__SSSE3__)
  return Ints(_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)), __m128i(places)));
#else
  uint8_t bytes[sizeof(places)];
  store_bytes(bytes, places);
  for (uint8_t& byte : bytes) byte = table[byte & 15];
  return load_bytes(bytes);
#endif
}

inline Ints four_inputs(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return all_ints(four);
}

// Products of the 4 bytes of each lane of unsigned `code` with 4 inputs, added up.
inline Ints quad_products(Ints code, const int8_t* x) {
#if defined(__SSE2__)
  const __m128i mask = _mm_set1_epi32(0x00ff00ff);
  const __m128i even = _mm_and_si128(__m128i(code), mask), odd = _mm_and_si128(_mm_srli_epi16(__m128i(code), 8), mask);
  const __m128i with_even = _mm_set1_epi32(int32_t(uint32_t(uint16_t(x[0])) | uint32_t(x[2]) << 16));
  const __m128i with_odd = _mm_set1_epi32(int32_t(uint32_t(uint16_t(x[1])) | uint32_t(x[3]) << 16));
  return Ints(_mm_add_epi32(_mm_madd_epi16(even, with_even), _mm_madd_epi16(odd, with_odd)));
#else
  Ints sum{};
  for (int byte = 0; byte < 4; ++byte) sum += Ints(Unsigned(code) >> (8 * byte) & 255u) * all_ints(x[byte]);
  return sum;
#endif
}

// sum + products of each lane's 4 unsigned codes with 4 inputs.
template <Codes>
inline Ints add_products(Ints sum, Ints code, Ints four) {
  int8_t x[4];
  __builtin_memcpy(x, &four, 4);
  return sum + quad_products(code, x);
}

// sums[t][v] = starts[t] + the products of `quads` quads of codes and x. `codes(quad, v)` returns unsigned bytes.
template <Codes, int quads, int tokens, int vectors, class Source>
inline void unit_sums(const Source& codes, const int8_t* x, int64_t stride, const int32_t* starts,
                      Ints (&sums)[tokens][vectors]) {
  for (int t = 0; t < tokens; ++t) {
    for (int v = 0; v < vectors; ++v) sums[t][v] = all_ints(starts[t]);
  }
  quads_in_turn<quads>([&](auto quad) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const Ints code = codes(quad, v);
      for (int t = 0; t < tokens; ++t) sums[t][v] += quad_products(code, x + t * stride + 4 * quad);
    }
  });
}

}  // namespace
}  // namespace modulm::MODULM_ISA
