// Integers of `kernels/linear_int8.cpp` on AVX2: 8 rows, `vpmaddubsw` multiplies unsigned by signed bytes and adds
// pairs into 16 bits, where it would cut off what does not fit. So codes of 8 bits are taken as signed: their
// magnitude, at most 128, times the activation with their sign stays within 2 * 128 * 127 = 32,512.
#pragma once

#include "linear_int8_ymm.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr bool kSignedBytes = true;  // whether codes of 8 bits are taken as signed, 128 less than they are
constexpr int kIntTile = 4;
// Vectors of rows for so many tokens. One token reads whole cache lines in order: memory is what it waits for.
constexpr int int_vectors_for(int tokens) { return tokens == 1 ? 4 : tokens == 2 ? 2 : 1; }

inline Ints widened_pairs(Ints shorts) { return _mm256_madd_epi16(shorts, _mm256_set1_epi16(1)); }

// Products of unsigned codes with 4 inputs in each lane, in pairs; codes of 8 bits count 128 less than they are.
template <Codes width>
inline Ints pair_products(Ints code, Ints four) {
  if constexpr (width != Codes::bits8) return _mm256_maddubs_epi16(code, four);
  const Ints shifted = _mm256_xor_si256(code, all_bytes(0x80));
  return _mm256_maddubs_epi16(_mm256_abs_epi8(shifted), _mm256_sign_epi8(four, shifted));
}

template <Codes width>
inline Ints add_products(Ints sum, Ints code, Ints four) {
  return _mm256_add_epi32(sum, widened_pairs(pair_products<width>(code, four)));
}

// sums[t][v] = starts[t] + the products of `quads` quads of codes and x. `codes(quad, v)` returns unsigned bytes.
template <Codes width, int quads, int tokens, int vectors, class Source>
inline void unit_sums(const Source& codes, const int8_t* x, int64_t stride, const int32_t* starts,
                      Ints (&sums)[tokens][vectors]) {
#pragma GCC unroll 4
  for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[t][v] = _mm256_set1_epi32(starts[t]);
  }
  // So many pairs fit into 16 bits: 2 * 2 * 63 * 127 = 32,004 and 4 * 2 * 31 * 127 = 31,496 for 5 bits and less.
  constexpr int together = width == Codes::bits8 ? 1 : width == Codes::bits6 ? 2 : 4;
  Ints shorts[tokens][vectors];
  quads_in_turn<quads>([&](auto quad) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const Ints code = codes(quad, v);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        const Ints pairs = pair_products<width>(code, four_inputs(x + t * stride + 4 * quad));
        shorts[t][v] = quad % together == 0 ? pairs : _mm256_add_epi16(shorts[t][v], pairs);
        if constexpr (quad % together == together - 1) {
          sums[t][v] = _mm256_add_epi32(sums[t][v], widened_pairs(shorts[t][v]));
        }
      }
    }
  });
}

}  // namespace
}  // namespace modulm::MODULM_ISA
