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

// Magnitudes are compared as bits, where NaN is larger than infinity and that larger than all numbers. Vectors are
// passed by reference, as how they are passed by value depends on the instruction set.
typedef int32_t Bits __attribute__((vector_size(32)));
// As they lie among floats. Compilers turn a memcpy into halves that are stored and loaded whole, which stalls.
typedef int32_t LooseBits __attribute__((vector_size(32), aligned(4), may_alias));

inline void make_larger(Bits& a, const Bits& b) { a = a > b ? a : b; }
inline float from_bits(int32_t bits) { return __builtin_bit_cast(float, bits); }

// For inputs 8i to 8i + 7, in each lane the largest magnitude of its quad.
inline void quad_magnitudes(const float* x, int i, Bits& bits) {
  bits = *reinterpret_cast<const LooseBits*>(x + 8 * i) & 0x7fffffff;
  make_larger(bits, __builtin_shufflevector(bits, bits, 1, 0, 3, 2, 5, 4, 7, 6));
  make_larger(bits, __builtin_shufflevector(bits, bits, 2, 3, 0, 1, 6, 7, 4, 5));
}

inline int32_t largest_of_quads(const Bits& a) { return a[0] > a[4] ? a[0] : a[4]; }

template <int kGroup>
void find_largest(const float* x, float* first, float* second) {
  Bits quads[kGroup / 8], all{}, rest{}, reach{};
  for (int i = 0; i < kGroup / 8; ++i) {
    quad_magnitudes(x, i, quads[i]);
    make_larger(all, quads[i]);
  }
  const int32_t largest = largest_of_quads(all);
  for (int i = 0; i < kGroup / 8; ++i) {
    make_larger(rest, quads[i] & (quads[i] < largest));
    reach += quads[i] == largest;  // -1 where it is
  }
  *first = from_bits(largest);
  *second = from_bits(reach[0] + reach[4] < -1 ? largest : largest_of_quads(rest));
}

inline int32_t rounded(float x, float inverse) {
  return __builtin_bit_cast(int32_t, x * inverse + kRound) - __builtin_bit_cast(int32_t, kRound);
}

typedef float LooseFloats __attribute__((vector_size(32), aligned(4), may_alias));
typedef int8_t LooseBytes __attribute__((vector_size(8), aligned(1), may_alias));

// The codes of a group. Returns their sum.
template <int kGroup>
int32_t round_all(const float* x, float inverse, int8_t* codes) {
  Bits sum{};
  for (int i = 0; i < kGroup; i += 8) {
    const Bits eight = Bits(*reinterpret_cast<const LooseFloats*>(x + i) * inverse + kRound) - __builtin_bit_cast(int32_t, kRound);
    *reinterpret_cast<LooseBytes*>(codes + i) = __builtin_convertvector(eight, LooseBytes);
    sum += eight;
  }
  sum += __builtin_shufflevector(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3);
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5);
  return sum[0] + sum[1];
}

// Takes the quad that holds more than `limit` out of a group whose scale is `scale`: puts its codes' low part in
// their place.
template <int kGroup>
HighQuad take_high(const float* x, float limit, float scale, int8_t* codes) {
  int quad = 0;
  for (int i = 0; i < kGroup; ++i) quad = (x[i] < 0 ? -x[i] : x[i]) > limit ? i / 4 : quad;
  HighQuad high{0, int16_t(quad), 0, {}, 128.0f * scale};
  for (int i = 0; i < 4; ++i) {
    const int32_t code = rounded(x[4 * quad + i], 127.0f / limit), upper = (code + 64) >> 7;
    high.codes[i] = int8_t(upper);
    high.sum = int16_t(high.sum + upper);
    codes[4 * quad + i] = int8_t(code - 128 * upper);
  }
  return high;
}

// Group `at` of all, from its inputs. On entry its scale and sum are `first` and `second`. Returns whether `high` was
// written.
template <int kGroup>
bool quantize_group(const float* x, float mean, const QuantizedRows& out, int64_t at, HighQuad* high) {
  int8_t* codes = out.codes + at * kGroup;
  const float first = out.scales[at], second = out.sums[at];
  if (__builtin_bit_cast(int32_t, first) >= kInfinity || first < kSmallest) {
    out.scales[at] = first < kSmallest ? 0.0f : __builtin_nanf("");
    out.sums[at] = out.scales[at];
    out.code_sums[at] = 0;
    __builtin_memset(codes, 0, kGroup);
    return false;
  }
  const bool has_high = (first - second) / mean * (first + second) > mean;
  const float least = first / 127.0f, limit = !has_high ? first : second > least ? second : least;
  const float scale = limit / 127.0f;
  int32_t sum = round_all<kGroup>(x, 127.0f / limit, codes), low = sum;
  if (has_high) {
    *high = take_high<kGroup>(x, limit, scale, codes);
    low = sum - 128 * high->sum;
  }
  out.scales[at] = scale;
  out.code_sums[at] = low;
  out.sums[at] = scale * float(sum);
  return has_high;
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
  HighQuad* high = out.high + row * out.num_groups;
  for (int64_t g = 0; g < out.num_groups; ++g) {
    if (quantize_group<kGroup>(inputs(g), mean, out, out.at(row, g), high)) high++->unit = int32_t(g);
  }
  out.num_high[row] = int32_t(high - (out.high + row * out.num_groups));
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
