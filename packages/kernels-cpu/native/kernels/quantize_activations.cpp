// Plain loops that compilers turn into vectors: this is a small share of a product, and one text for all instruction
// sets is what makes their results equal.
#include "quantize_activations.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr float kSmallest = 0x1p-100f;  // below it 127 / largest could overflow
constexpr uint32_t kInfinity = 0x7f800000u;
// Adding 1.5 * 2^23 leaves the nearest whole number, ties to even, in the low bits.
constexpr float kRound = 12582912.0f;
constexpr int64_t kLargestGroup = 512;

uint32_t largest_magnitude(const float* x, int64_t count) {
  uint32_t largest = 0;  // as bits, where NaN is larger than infinity and that larger than all numbers
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

int32_t round_all(const float* x, int64_t count, float inverse, int8_t* codes) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t code = __builtin_bit_cast(int32_t, x[i] * inverse + kRound) - __builtin_bit_cast(int32_t, kRound);
    codes[i] = int8_t(code);
    sum += code;
  }
  return sum;
}

void quantize_group(const float* x, int64_t count, int64_t group, int8_t* codes, float* scale, float* sum,
                    int32_t* code_sum) {
  const uint32_t bits = largest_magnitude(x, count);
  const float largest = __builtin_bit_cast(float, bits);
  int32_t total = 0;
  int64_t done = 0;
  *scale = 0.0f;
  if (bits >= kInfinity) {
    *scale = __builtin_nanf("");
  } else if (largest >= kSmallest) {
    *scale = largest / 127.0f;
    total = round_all(x, count, 127.0f / largest, codes);
    done = count;
  }
  for (int64_t i = done; i < group; ++i) codes[i] = 0;
  *code_sum = total;
  *sum = *scale * float(total);
}

const float* as_floats(const void* x, Float type, int64_t first, int64_t count, float* buffer) {
  if (type == Float::f32) return static_cast<const float*>(x) + first;
  const uint16_t* from = static_cast<const uint16_t*>(x) + first;
  if (type == Float::bf16) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = from_bf16(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) buffer[i] = from_f16(from[i]);
  }
  return buffer;
}

void quantize_rows(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, int64_t size,
                   const QuantizedRows& out) {
  float buffer[kLargestGroup];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t g = 0; g < out.num_groups; ++g) {
      const int64_t first = g * out.group, left = size - first, count = left < out.group ? left : out.group;
      const int64_t at = out.at(row, g);
      const float* values = as_floats(x, type, row * stride + first, count, buffer);
      quantize_group(values, count, out.group, out.codes + at * out.group, out.scales + at, out.sums + at,
                     out.code_sums + at);
    }
  }
}

}  // namespace

extern const ActivationKernels activations;
const ActivationKernels activations{quantize_rows};

}  // namespace modulm::MODULM_ISA
