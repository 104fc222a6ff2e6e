// How numbers are kept in memory when they are not float32: 16 bits, in the two usual ways.
//
// The conversions are written out, in each file's own namespace, so that none of them is shared between instruction sets.
#pragma once

#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace modulm {

struct Half {  // IEEE binary16
  uint16_t bits;
};

struct Brain {  // bfloat16: the upper half of a float32
  uint16_t bits;
};

namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float widen(float x) { return x; }

inline float widen(Brain x) { return float_of(uint32_t(x.bits) << 16); }

inline float widen(Half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
  __fp16 half;
  __builtin_memcpy(&half, &x.bits, sizeof(half));
  return float(half);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Read the exponent as float32's, then correct its bias; subnormals come out right because the product is exact.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
#endif
}

// To nearest, ties to even, as torch rounds.
inline void narrow(float x, float* to) { *to = x; }

inline void narrow(float x, Brain* to) {
  const uint32_t bits = bits_of(x);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = is_nan ? 0x7fc0u : uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline void narrow(float x, Half* to) {
#if defined(__F16C__)
  to->bits = uint16_t(_cvtss_sh(x, 0));
#elif defined(__aarch64__)
  const __fp16 half = __fp16(x);
  __builtin_memcpy(&to->bits, &half, sizeof(half));
#else
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t half;
  if (rest > 0x7f800000u) {
    half = 0x7e00u;
  } else if (rest >= 0x47800000u) {  // 65536 and above; from 65520 the sum below carries into infinity by itself
    half = 0x7c00u;
  } else if (rest < 0x38800000u) {  // subnormal: adding 0.5 lets the processor round at the right place
    half = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
  } else {
    half = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
  }
  to->bits = uint16_t(sign | half);
#endif
}

}  // namespace
}  // namespace modulm
