// Sums of `kernels/linear_int8.cpp` where one instruction adds four products of bytes to each lane: AVX-VNNI, AVX-512
// and Arm with dot products. One text over the vectors of the file that includes it, which has
//   taken<width>(codes)           unsigned codes as the instruction takes them,
//   dot(sum, code, four)          the instruction, `four` being the same 4 inputs in each lane,
//   dot_quad<quad>(sum, code, x)  the same with inputs 4 * quad to 4 * quad + 3 of x.
#pragma once

#include "in_turn.hpp"

namespace modulm::MODULM_ISA {
namespace {

// sum + products of each lane's 4 unsigned codes with 4 inputs.
template <Codes width>
inline Ints add_products(Ints sum, Ints code, Ints four) {
  return dot(sum, taken<width>(code), four);
}

// sums[t][v] = starts[t] + the products of `quads` quads of codes and x. `codes(quad, v)` returns unsigned bytes.
template <Codes width, int quads, int tokens, int vectors, class Source>
inline void unit_sums(const Source& codes, const int8_t* x, int64_t stride, const int32_t* starts,
                      Ints (&sums)[tokens][vectors]) {
#pragma GCC unroll 8
  for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[t][v] = all_ints(starts[t]);
  }
  quads_in_turn<quads>([&](auto quad) {
    Ints code[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) code[v] = taken<width>(codes(quad, v));
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[t][v] = dot_quad<int(quad)>(sums[t][v], code[v], x + t * stride);
    }
  });
}

}  // namespace
}  // namespace modulm::MODULM_ISA
