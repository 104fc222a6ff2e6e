// The vectors of `kernels/linear_q4.cpp` on AVX-VNNI: 8 rows, `vpdpbusd` adds 4 products to each lane.
#pragma once

#include "linear_q4_ymm.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 1;
constexpr bool kSignedCodes = false;

inline Ints low_codes(Ints raw) { return _mm256_and_si256(raw, _mm256_set1_epi8(15)); }
inline Ints high_codes(Ints raw) { return low_codes(_mm256_srli_epi16(raw, 4)); }
inline Ints all_ints(int32_t value) { return _mm256_set1_epi32(value); }

inline Ints dot(Ints sum, Ints codes, Ints four) { return _mm256_dpbusd_avx_epi32(sum, codes, four); }
template <int quad>
inline Ints dot_quad(Ints sum, Ints codes, const int8_t* x) { return dot(sum, codes, activation(x + 4 * quad)); }

struct StepTable {
  __m256i steps;
  explicit StepTable(const int8_t* from) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    steps = _mm256_xor_si256(_mm256_broadcastsi128_si256(table), _mm256_set1_epi8(char(0x80)));
  }
  Ints operator()(Ints codes) const { return _mm256_shuffle_epi8(steps, codes); }
};

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_q4_dot.hpp"
