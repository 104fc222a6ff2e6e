// Plain loops that compilers turn into vectors: this is a small share of a product, and one text for all instruction
// sets is what makes their results equal.
#include "quantize_activations.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr float kSmallest = 0x1p-100f;  // below it 127 / largest could overflow
constexpr int32_t kInfinity = 0x7f800000;
// Adding 1.5 * 2^23 leaves the nearest whole number, ties to even, in the low bits.
constexpr float kRound = 12582912.0f;
constexpr int64_t kLargestGroup = 32;

// Magnitudes are compared as bits, where NaN is larger than infinity and that larger than all numbers. Vectors are passed
// by reference, as how they are passed by value depends on the instruction set.
typedef int32_t Bits __attribute__((vector_size(32)));

inline void make_larger(Bits& a, const Bits& b) { a = a > b ? a : b; }
inline float from_bits(int32_t bits) { return __builtin_bit_cast(float, bits); }

// For inputs 8i to 8i + 7, in each lane the largest magnitude of its quad.
inline void quad_magnitudes(const float* x, int i, Bits& bits) {
  __builtin_memcpy(&bits, x + 8 * i, sizeof(bits));
  bits &= 0x7fffffff;
  make_larger(bits, __builtin_shufflevector(bits, bits, 1, 0, 3, 2, 5, 4, 7, 6));
  make_larger(bits, __builtin_shufflevector(bits, bits, 2, 3, 0, 1, 6, 7, 4, 5));
}

inline int32_t largest_of_quads(const Bits& a) { return a[0] > a[4] ? a[0] : a[4]; }

template <int kGroup>
void find_largest(const float* x, float* first, float* second) {
  Bits quads[kGroup / 8], all{}, rest{};
  for (int i = 0; i < kGroup / 8; ++i) {
    quad_magnitudes(x, i, quads[i]);
    make_larger(all, quads[i]);
  }
  const int32_t largest = largest_of_quads(all);
  for (int i = 0; i < kGroup / 8; ++i) make_larger(rest, quads[i] & (quads[i] < largest));
  *first = from_bits(largest);
  *second = from_bits(largest_of_quads(rest));
}

inline int32_t rounded(float x, float inverse) {
  return __builtin_bit_cast(int32_t, x * inverse + kRound) - __builtin_bit_cast(int32_t, kRound);
}

template <int kGroup>
int32_t round_all(const float* x, float inverse, int8_t* codes) {
  int32_t sum = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int32_t code = rounded(x[i], inverse);
    codes[i] = int8_t(code);
    sum += code;
  }
  return sum;
}

// The same where some quads are beyond `limit`; sets their bits in `high_quads`.
template <int kGroup>
int32_t round_in_two(const float* x, float limit, int8_t* codes, int8_t* high, uint8_t* high_quads) {
  int32_t sum = 0, is_high[kGroup], set = 0;
  const int32_t bits = __builtin_bit_cast(int32_t, limit);
  const float inverse = 127.0f / limit;
  for (int i = 0; i < kGroup / 8; ++i) {
    Bits beyond;
    quad_magnitudes(x, i, beyond);
    beyond = beyond > bits;
    __builtin_memcpy(is_high + 8 * i, &beyond, sizeof(beyond));
    set |= (beyond[0] & 1) << (2 * i) | (beyond[4] & 2) << (2 * i);
  }
  for (int i = 0; i < kGroup; ++i) {
    const int32_t code = rounded(x[i], inverse), upper = ((code + 64) >> 7) & is_high[i];
    high[i] = int8_t(upper);
    codes[i] = int8_t(code - 128 * upper);
    sum += code;
  }
  *high_quads = uint8_t(set);
  return sum;
}

// Group `at` of all, from its inputs. On entry its scale and sum are `first` and `second`.
template <int kGroup>
void quantize_group(const float* x, float mean, const QuantizedRows& out, int64_t at) {
  int8_t *codes = out.codes + at * kGroup, *high = out.high + at * kGroup;
  const float first = out.scales[at], second = out.sums[at];
  float scale = 0.0f;
  int32_t sum = 0;
  out.high_quads[at] = 0;
  __builtin_memset(high, 0, kGroup);
  if (__builtin_bit_cast(int32_t, first) >= kInfinity || first < kSmallest) {
    if (!(first < kSmallest)) scale = __builtin_nanf("");
    __builtin_memset(codes, 0, kGroup);
  } else if ((first - second) / mean * (first + second) > mean) {
    const float least = first / 127.0f, limit = second > least ? second : least;
    scale = limit / 127.0f;
    sum = round_in_two<kGroup>(x, limit, codes, high, out.high_quads + at);
  } else {
    scale = first / 127.0f;
    sum = round_all<kGroup>(x, 127.0f / first, codes);
  }
  out.scales[at] = scale;
  out.code_sums[at] = sum;
  out.sums[at] = scale * float(sum);
}

// Inputs [first, first + count) of x in float32, filled up to `group` with zeros; in `buffer` unless they lie ready.
const float* as_floats(const void* x, Float type, int64_t first, int64_t count, int64_t group, float* buffer) {
  if (type == Float::f32) {
    const float* from = static_cast<const float*>(x) + first;
    if (count == group) return from;
    for (int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(x) + first;
    for (int64_t i = 0; i < count; ++i) buffer[i] = type == Float::bf16 ? from_bf16(from[i]) : from_f16(from[i]);
  }
  for (int64_t i = count; i < group; ++i) buffer[i] = 0.0f;
  return buffer;
}

template <int kGroup>
void quantize_row(const void* x, Float type, int64_t start, int64_t size, int64_t row, const QuantizedRows& out) {
  float buffer[kGroup], sum = 0.0f;
  const auto inputs = [&](int64_t g) {
    const int64_t first = g * kGroup, left = size - first;
    return as_floats(x, type, start + first, left < kGroup ? left : kGroup, kGroup, buffer);
  };
  for (int64_t g = 0; g < out.num_groups; ++g) {
    const int64_t at = out.at(row, g);
    find_largest<kGroup>(inputs(g), out.scales + at, out.sums + at);
    sum += out.scales[at];
  }
  const float mean = sum / float(out.num_groups);
  for (int64_t g = 0; g < out.num_groups; ++g) quantize_group<kGroup>(inputs(g), mean, out, out.at(row, g));
}

void quantize_rows(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, int64_t size,
                   const QuantizedRows& out) {
  const auto quantize = out.group == kLargestGroup ? quantize_row<32> : quantize_row<16>;
  for (int64_t row = begin; row < end; ++row) quantize(x, type, row * stride, size, row, out);
}

}  // namespace

extern const ActivationKernels activations;
const ActivationKernels activations{quantize_rows};

}  // namespace modulm::MODULM_ISA
