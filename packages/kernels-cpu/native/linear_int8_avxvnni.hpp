// Integers of `kernels/linear_int8.cpp` on AVX-VNNI: 8 rows, `vpdpbusd` adds 4 products to each lane.
#pragma once

#include "linear_int8_ymm.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr bool kSignedBytes = false;  // AVX2 takes codes of 8 bits as signed, 128 less than they are
constexpr int kIntTile = 4;
// Vectors of rows for so many tokens. One token reads whole cache lines in order: memory is what it waits for.
constexpr int int_vectors_for(int tokens) { return tokens == 1 ? 4 : tokens == 2 ? 2 : 1; }

template <Codes>
inline Ints taken(Ints code) { return code; }
inline Ints dot(Ints sum, Ints code, Ints four) { return _mm256_dpbusd_avx_epi32(sum, code, four); }
template <int quad>
inline Ints dot_quad(Ints sum, Ints code, const int8_t* x) { return dot(sum, code, four_inputs(x + 4 * quad)); }

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_int8_dot.hpp"
