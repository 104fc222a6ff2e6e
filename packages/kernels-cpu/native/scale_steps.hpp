// Scales that are whole multiples of a coarser one, as GGUF's types have them for 256 inputs: finds both again in the
// products. Baseline code: it runs once, at load.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

namespace modulm {

// The largest number of 11 bits, as float16 has them, that all scales are whole multiples of, at most 128 times; 0 where
// all are 0, not a number where there is none.
inline float common_step(const float* scales, int64_t count) {
  constexpr float none = std::numeric_limits<float>::quiet_NaN();
  uint32_t common = 0;
  int lowest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, scales[i]) & 0x7fffffffu, exponent = bits >> 23;
    if (exponent == 255) return none;
    if (bits == 0) continue;
    const uint32_t whole = exponent == 0 ? bits : (bits & 0x7fffffu) | 0x800000u;
    const int zeros = __builtin_ctz(whole), last = int(std::max(exponent, 1u)) + zeros;
    const uint32_t odd = whole >> zeros;
    lowest = common == 0 ? last : std::min(lowest, last);
    if (common == 0 || odd % common != 0) common = std::gcd(common, odd);  // nearly always one division
  }
  for (uint32_t factor = 1; factor <= 128; factor += 2) {  // multiples may have one in common
    if (common % factor == 0 && common / factor < 2048) return std::ldexp(float(common / factor), lowest - 150);
  }
  return none;
}

// Returns the coarse scale, and each scale as so many times that; not a number where they are none. Multiples are not
// negative where all scales have one sign, which the coarse one then has, unless they are 128.
inline float coarse_scale(const float* scales, int64_t count, int8_t* steps) {
  const float step = common_step(scales, count);
  const auto [smallest, largest] = std::minmax_element(scales, scales + count);
  const bool is_negative = *largest > 127.0f * step || (*largest <= 0.0f && *smallest >= -127.0f * step && *smallest < 0.0f);
  const float coarse = is_negative ? -step : step;
  for (int64_t i = 0; i < count; ++i) {
    const float times = scales[i] == 0.0f ? 0.0f : scales[i] / coarse;
    if (!(times >= -128.0f && times <= 127.0f)) return std::numeric_limits<float>::quiet_NaN();
    steps[i] = int8_t(times);
  }
  return coarse;
}

}  // namespace modulm
