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

constexpr int kQuadBytes = 128;

// Quad `quad` of a block for the lanes from `row` on.
template <Codes width, int quad>
inline Ints quad_codes(const uint8_t* block, int row) {
  const uint8_t* from = block + row * 4;
  if constexpr (width == Codes::bits8) return load_bytes(from + quad * kQuadBytes);
  constexpr int half = width == Codes::bits6 ? quad / 4 * 384 : 0;
  constexpr int pair = width == Codes::bits6 ? quad % 4 / 2 : quad / 2;
  constexpr int upper = width == Codes::bits6 ? 256 : 512;
  constexpr int shift = width == Codes::bits6 ? quad % 4 * 2 - 4 : quad - 4;  // brings the upper bits to bit 4
  const Ints low = both(shifted_right<quad % 2 * 4>(load_bytes(from + half + pair * kQuadBytes)), all_bytes(15));
  const Ints high = shifted_right<shift>(load_bytes(from + half + upper));
  return either(low, both(high, all_bytes(width == Codes::bits6 ? 0x30 : 0x10)));
}

// The same for a quad that is not known to the compiler.
template <Codes width>
inline Ints any_quad_codes(const uint8_t* block, int row, int quad) {
  if constexpr (width == Codes::bits8) return load_bytes(block + row * 4 + quad * kQuadBytes);
  Ints codes{};
  quads_in_turn<8>([&](auto number) {
    if (number == quad) codes = quad_codes<width, int(number)>(block, row);
  });
  return codes;
}

// Blocks of any width -> blocks of 8 bits.
template <Codes width>
inline void widen_blocks(const uint8_t* from, int64_t blocks, uint8_t* to) {
  for (int64_t block = 0; block < blocks; ++block) {
    quads_in_turn<8>([&](auto quad) {
      for (int row = 0; row < int(kPanelRows); row += kLanes) {
        store_bytes(to + block * 1024 + quad * kQuadBytes + row * 4,
                    quad_codes<width, int(quad)>(from + block * block_bytes(width), row));
      }
    });
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
