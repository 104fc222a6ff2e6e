// Unpacks quads of codes to unsigned bytes; see linear_int8.hpp for how they lie. Included by kernels only.
#pragma once

#include "in_turn.hpp"
#include "linear_int8.hpp"

#if defined(__AVX512F__)
#include "linear_int8_avx512.hpp"
#elif defined(__AVXVNNI__)
#include "linear_int8_avxvnni.hpp"
#elif defined(__AVX2__)
#include "linear_int8_avx2.hpp"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "linear_int8_neon.hpp"
#else
#include "linear_int8_generic.hpp"
#endif

namespace modulm::MODULM_ISA {
namespace {

// Calls body.operator()<codes>() for a width that is not known to the compiler.
template <class Body>
inline void with_width(Codes codes, const Body& body) {
  switch (codes) {
    case Codes::bits2: return body.template operator()<Codes::bits2>();
    case Codes::bits3: return body.template operator()<Codes::bits3>();
    case Codes::bits4: return body.template operator()<Codes::bits4>();
    case Codes::bits5: return body.template operator()<Codes::bits5>();
    case Codes::bits6: return body.template operator()<Codes::bits6>();
    case Codes::bits8: return body.template operator()<Codes::bits8>();
    case Codes::table3: return body.template operator()<Codes::table3>();
    case Codes::table4: return body.template operator()<Codes::table4>();
    case Codes::vectors: return body.template operator()<Codes::vectors>();
  }
}

template <class Byte>
inline Ints load_as_ints(const uint8_t* from) {
  [[maybe_unused]] constexpr bool is_signed = Byte(-1) < Byte(0);
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
#else
  return Ints{Byte(from[0]), Byte(from[1]), Byte(from[2]), Byte(from[3])};
#endif
}

// Quad `quad` of a block for the lanes from `row` on, as it is stored.
template <Codes width, int quad>
inline Ints stored_codes(const uint8_t* block, int row) {
  constexpr QuadPlace place = place_of(width, quad);
  const uint8_t* from = block + row * 4;
  const Ints stored = load_bytes(from + place.low);
  if constexpr (place.low_bits == 8) return stored;
  const Ints low = both(shifted_right<place.low_shift>(stored), all_bytes((1 << place.low_bits) - 1));
  if constexpr (place.high_bits == 0) return low;
  const Ints high = shifted_right<place.high_shift - place.low_bits>(load_bytes(from + place.high));
  return either(low, both(high, all_bytes(((1 << place.high_bits) - 1) << place.low_bits)));
}

// The same as unsigned bytes that are multiplied.
template <Codes width, int quad>
inline Ints quad_codes(const Int8Panels& weight, const uint8_t* block, int row) {
  const Ints stored = stored_codes<width, quad>(block, row);
  if constexpr (in_table(width)) return bytes_of_table(weight.table, stored);
  return stored;
}

}  // namespace
}  // namespace modulm::MODULM_ISA
