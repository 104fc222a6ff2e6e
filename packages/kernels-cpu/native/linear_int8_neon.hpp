// Integers of `kernels/linear_int8.cpp` on Arm with dot products: 4 rows, `sdot` adds 4 products of signed bytes to
// each lane, of all lanes with the same 4 of 16 inputs.
#pragma once

#include "lanes.hpp"
#include "linear_int8.hpp"

namespace modulm::MODULM_ISA {
namespace {

using Ints = int32x4_t;
constexpr bool kSignedBytes = true;  // codes of 8 bits are taken as signed, 128 less than they are
constexpr int kIntTile = 4;
// Vectors of rows for so many tokens: with 4 tokens 8 sums of integers and 8 of floats, of 32 registers.
constexpr int int_vectors_for(int tokens) { return tokens == 1 ? 8 : tokens == 2 ? 4 : 2; }

inline Ints load_bytes(const uint8_t* from) { return vreinterpretq_s32_u8(vld1q_u8(from)); }
inline void store_bytes(uint8_t* to, Ints value) { vst1q_u8(to, vreinterpretq_u8_s32(value)); }
inline Ints all_bytes(int value) { return vreinterpretq_s32_u8(vdupq_n_u8(uint8_t(value))); }
inline Ints both(Ints a, Ints b) { return vandq_s32(a, b); }
inline Ints either(Ints a, Ints b) { return vorrq_s32(a, b); }
template <int bits>  // to the left where negative
inline Ints shifted_right(Ints a) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-bits)));
}
inline Ints all_ints(int32_t value) { return vdupq_n_s32(value); }
inline Ints minus(Ints a, Ints b) { return vsubq_s32(a, b); }
inline Vec to_floats(Ints a) { return vcvtq_f32_s32(a); }

inline Ints bytes_of_table(const uint8_t* table, Ints places) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(places)));
}

inline Ints four_inputs(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return vdupq_n_s32(four);
}

template <Codes width>
inline Ints taken(Ints code) { return width == Codes::bits8 ? veorq_s32(code, all_bytes(0x80)) : code; }
inline Ints dot(Ints sum, Ints code, Ints four) {
  return vdotq_s32(sum, vreinterpretq_s8_s32(code), vreinterpretq_s8_s32(four));
}
template <int quad>
inline Ints dot_quad(Ints sum, Ints code, const int8_t* x) {
  return vdotq_laneq_s32(sum, vreinterpretq_s8_s32(code), vld1q_s8(x + quad / 4 * 16), quad % 4);
}

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_int8_dot.hpp"
