// Numbers of the cache by their type, so that one template serves all: float32, and 16 bits in the two usual ways.
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

namespace {

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

// To nearest, ties to even, as torch rounds.
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
