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
  }
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

// The same for a quad that is not known to the compiler.
template <Codes width>
inline Ints any_quad_codes(const Int8Panels& weight, const uint8_t* block, int row, int quad) {
  if constexpr (width == Codes::bits8) return load_bytes(block + row * 4 + quad * kQuadBytes);
  Ints codes{};
  quads_in_turn<8>([&](auto number) {
    if (number == quad) codes = quad_codes<width, int(number)>(weight, block, row);
  });
  return codes;
}

// Blocks of any width -> blocks of 8 bits.
template <Codes width>
inline void widen_blocks(const Int8Panels& weight, const uint8_t* from, int64_t blocks, uint8_t* to) {
  for (int64_t block = 0; block < blocks; ++block) {
    quads_in_turn<8>([&](auto quad) {
      for (int row = 0; row < int(kPanelRows); row += kLanes) {
        store_bytes(to + block * 1024 + quad * kQuadBytes + row * 4,
                    quad_codes<width, int(quad)>(weight, from + block * block_bytes(width), row));
      }
    });
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
