// The three float types of activations and scales, and their conversion without help of the processor.
//
// Functions have internal linkage: an inline one compiled for AVX-512 could be linked into the baseline.
#pragma once

#include <cstdint>

namespace modulm {

// Python passes these numbers: see `float_number` in packed_dense.py.
enum class Float : int { f32 = 0, f16 = 1, bf16 = 2 };

inline constexpr int64_t bytes_of(Float type) { return type == Float::f32 ? 4 : 2; }

namespace {

[[maybe_unused]] inline float from_bf16(uint16_t bits) { return __builtin_bit_cast(float, uint32_t(bits) << 16); }

// To nearest even, as torch does; NaN stays NaN.
[[maybe_unused]] constexpr uint16_t to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

[[maybe_unused]] constexpr float from_f16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + (uint32_t(127 - 15) << 23);
  } else {
    bits = __builtin_bit_cast(uint32_t, float(magnitude) * 0x1p-24f);  // subnormal or zero: exact
  }
  return __builtin_bit_cast(float, bits | sign);
}

// 8-bit floats by way of float16. The exponent of e4m3 is biased by 7 instead of 15; it has one NaN and no infinity.
[[maybe_unused]] constexpr float from_e5m2(uint8_t bits) { return from_f16(uint16_t(bits << 8)); }
[[maybe_unused]] constexpr float from_e4m3(uint8_t bits) {
  const int magnitude = bits & 0x7f, sign = (bits & 0x80) << 8;
  return from_f16(uint16_t(sign | (magnitude == 0x7f ? 0x7e00 : magnitude << 7))) * 256.0f;
}

// To nearest even; what is too large becomes infinite, NaN stays NaN.
[[maybe_unused]] inline uint16_t to_f16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {                                  // below 2^-14: a multiple of 2^-24
    // 0.5 has a unit of 2^-24, so that adding it makes the processor round where float16 would.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return uint16_t(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (uint32_t(127 - 15) << 23)) >> 13));
}

// 8-bit floats of four exponent bits become binary16 by a shift that leaves the exponent's offset: a factor of 2^8, which
// is in no number but in `kUnit` of storage.hpp. All ones are no number, and become none.
[[maybe_unused]] inline uint16_t e4m3_to_f16_bits(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  return uint16_t((code & 0x80u) << 8 | (magnitude == 0x7fu ? 0x7fffu : magnitude << 7));
}

// To nearest even, at most 448; NaN stays NaN.
[[maybe_unused]] inline uint8_t to_e4m3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffffu;
  const uint8_t sign = uint8_t((bits >> 24) & 0x80u);
  if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return uint8_t(sign | 0x7eu);  // 448 and more
  if (magnitude < 0x3c800000u) {                               // below 2^-6: a multiple of 2^-9, which is 2^14's unit
    const float shifted = __builtin_bit_cast(float, magnitude) + 16384.0f;
    return uint8_t(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x46800000u));
  }
  return uint8_t(sign | ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (uint32_t(127 - 7) << 23)) >> 20));
}

// The same with five exponent bits, the upper half of binary16: at most 57344.
[[maybe_unused]] inline uint8_t to_e5m2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffffu;
  const uint8_t sign = uint8_t((bits >> 24) & 0x80u);
  if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= 0x47600000u) return uint8_t(sign | 0x7bu);
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-16, which is 2^7's unit
    const float shifted = __builtin_bit_cast(float, magnitude) + 128.0f;
    return uint8_t(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x43000000u));
  }
  return uint8_t(sign | ((magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - (uint32_t(127 - 15) << 23)) >> 21));
}

}  // namespace
}  // namespace modulm
