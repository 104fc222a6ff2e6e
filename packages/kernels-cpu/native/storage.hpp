// Numbers of the cache by their type, so that one template serves all: float32, and 16 and 8 bits in the two usual ways.
#pragma once

#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "float_types.hpp"

namespace modulm {

struct Half {  // IEEE binary16
  uint16_t bits;
};

struct Brain {  // bfloat16: the upper half of a float32
  uint16_t bits;
};

struct E4M3 {  // four bits of exponent, no infinity, one NaN (OCP 8-bit floating point, as all say e4m3fn)
  uint8_t bits;
};

struct E5M2 {  // the upper half of binary16
  uint8_t bits;
};

namespace {

// What 1 stands for in numbers that `widen` and `load` return: who multiplies them multiplies by it, once.
template <class T>
constexpr float kUnit = 1.0f;
template <>
constexpr float kUnit<E4M3> = 256.0f;

inline float widen(float x) { return x; }
inline float widen(Brain x) { return from_bf16(x.bits); }
inline float widen(Half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
  return float(__builtin_bit_cast(__fp16, x.bits));
#else
  return from_f16(x.bits);
#endif
}

inline float widen(E4M3 x) { return widen(Half{e4m3_to_f16_bits(x.bits)}); }
inline float widen(E5M2 x) { return widen(Half{uint16_t(x.bits << 8)}); }

// To nearest, ties to even, as torch rounds; to 8 bits what is too large becomes the largest.
inline void narrow(float x, E4M3* to) { to->bits = to_e4m3(x); }
inline void narrow(float x, E5M2* to) { to->bits = to_e5m2(x); }
inline void narrow(float x, float* to) { *to = x; }
inline void narrow(float x, Brain* to) { to->bits = to_bf16(x); }
inline void narrow(float x, Half* to) {
#if defined(__F16C__)
  to->bits = uint16_t(_cvtss_sh(x, 0));
#elif defined(__aarch64__)
  to->bits = __builtin_bit_cast(uint16_t, __fp16(x));
#else
  to->bits = to_f16(x);
#endif
}

}  // namespace
}  // namespace modulm
