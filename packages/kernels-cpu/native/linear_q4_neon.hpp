// The vectors of `kernels/linear_q4.cpp` on Arm with dot products: 8 rows in two vectors, `sdot` adds 4 products of
// signed bytes to each lane, of all lanes with the same 4 of 16 inputs.
#pragma once

#include <arm_neon.h>

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 1;
constexpr bool kSignedCodes = true;

// Two vectors as one.
template <class Vector>
struct Pair {
  Vector part[2];
};
using Floats = Pair<float32x4_t>;
using Ints = Pair<int32x4_t>;

// function(part of each operand) for both parts.
template <class Function, class... Operands>
inline auto both_parts(const Function& function, const Operands&... operands) {
  return Pair<decltype(function(operands.part[0]...))>{function(operands.part[0]...), function(operands.part[1]...)};
}

inline Floats broadcast(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
inline Floats zero() { return broadcast(0.0f); }
inline Floats multiply(Floats a, Floats b) {
  return both_parts([](float32x4_t x, float32x4_t y) { return vmulq_f32(x, y); }, a, b);
}
inline Floats add(Floats a, Floats b) {
  return both_parts([](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); }, a, b);
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return both_parts([](float32x4_t x, float32x4_t y, float32x4_t z) { return vfmaq_f32(z, x, y); }, a, b, c);
}
inline Floats to_floats(Ints a) {
  return both_parts([](int32x4_t x) { return vcvtq_f32_s32(x); }, a);
}
inline void store(float* to, Floats a) {
  vst1q_f32(to, a.part[0]);
  vst1q_f32(to + 4, a.part[1]);
}

inline Floats load_floats(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
inline Floats widen_halves(float16x8_t halves) {
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline Floats load_scales(const uint8_t* from, ScaleType type) {
  if (type == ScaleType::f32) return load_floats(reinterpret_cast<const float*>(from));
  if (type == ScaleType::f16) return widen_halves(vreinterpretq_f16_u8(vld1q_u8(from)));
  const uint16x8_t wide = vmovl_u8(vld1_u8(from));
  if (type == ScaleType::f16_byte) return widen_halves(vreinterpretq_f16_u16(vshlq_n_u16(wide, 7)));
  return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(wide)), 23)),
          vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(wide), 23))};
}

inline Floats load_bytes(const uint8_t* from) {
  const uint16x8_t wide = vmovl_u8(vld1_u8(from));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
}

inline Ints all_ints(int32_t value) { return {vdupq_n_s32(value), vdupq_n_s32(value)}; }
inline Ints load_nibbles(const uint8_t* from) {
  return {vreinterpretq_s32_u8(vld1q_u8(from)), vreinterpretq_s32_u8(vld1q_u8(from + 16))};
}
inline Ints low_codes(Ints raw) {
  return both_parts([](int32x4_t x) { return vandq_s32(x, vreinterpretq_s32_u8(vdupq_n_u8(15))); }, raw);
}
inline Ints high_codes(Ints raw) {
  return both_parts([](int32x4_t x) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), 4)); }, raw);
}

inline Ints quad_codes(const uint8_t* nibbles, int high) {
  const int8x16_t shift = vdupq_n_s8(int8_t(-4 * high));
  return low_codes(both_parts([=](int32x4_t x) {
    return vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(x), shift));
  }, load_nibbles(nibbles)));
}

// Input `byte` of the 4 low (`high` 0) or high nibbles of each lane, as an integer.
inline Ints one_code(Ints nibbles, int high, int byte) {
  const int32x4_t shift = vdupq_n_s32(-(8 * byte + 4 * high)), mask = vdupq_n_s32(15);
  return both_parts([=](int32x4_t x) { return vandq_s32(vshlq_s32(x, shift), mask); }, nibbles);
}
inline Floats code(Ints nibbles, int high, int byte) { return to_floats(one_code(nibbles, high, byte)); }

struct ValueTable {
  uint8x16x4_t values;
  explicit ValueTable(const float* from) : values(vld1q_u8_x4(reinterpret_cast<const uint8_t*>(from))) {}
  Floats operator()(Ints nibbles, int high, int byte) const {  // the four bytes of float `code` are 4 * code on
    const auto value = [this](int32x4_t x) {
      const int32x4_t index = vmlaq_n_s32(vdupq_n_s32(0x03020100), x, 0x04040404);
      return vreinterpretq_f32_u8(vqtbl4q_u8(values, vreinterpretq_u8_s32(index)));
    };
    return both_parts(value, one_code(nibbles, high, byte));
  }
};

inline Ints activation(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return all_ints(four);
}

inline Ints dot(Ints sum, Ints codes, Ints four) {
  return both_parts([](int32x4_t s, int32x4_t c, int32x4_t x) {
    return vdotq_s32(s, vreinterpretq_s8_s32(c), vreinterpretq_s8_s32(x));
  }, sum, codes, four);
}
template <int quad>
inline Ints dot_quad(Ints sum, Ints codes, const int8_t* x) {
  const int8x16_t inputs = vld1q_s8(x + quad / 4 * 16);
  return both_parts([=](int32x4_t s, int32x4_t c) {
    return vdotq_laneq_s32(s, vreinterpretq_s8_s32(c), inputs, quad % 4);
  }, sum, codes);
}

struct StepTable {
  int8x16_t steps;
  explicit StepTable(const int8_t* from) : steps(vld1q_s8(from)) {}
  Ints operator()(Ints codes) const {
    return both_parts([this](int32x4_t x) {
      return vreinterpretq_s32_s8(vqtbl1q_s8(steps, vreinterpretq_u8_s32(x)));
    }, codes);
  }
};

}  // namespace
}  // namespace modulm::MODULM_ISA

#include "linear_q4_dot.hpp"
