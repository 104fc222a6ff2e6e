// What a block's sums need besides units' products: minimums, quads set apart, what is asked for ahead, results. Included after
// the vectors of an instruction set by `kernels/linear_q4.cpp` and by what takes its place in `extensions/`.
#pragma once

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Store a block's rows of one token.
void put(const Q4Out& out, int64_t token, int64_t row, int64_t count, Floats values) {
  const int64_t at = token * out.stride + row;
  if (out.type == Float::f32 && count >= kLanes) return store(static_cast<float*>(out.data) + at, values);
  alignas(64) float lanes[kLanes];
  store(lanes, values);
  for (int64_t r = 0; r < kLanes && r < count; ++r) {
    if (out.type == Float::f32) {
      static_cast<float*>(out.data)[at + r] = lanes[r];
    } else {
      static_cast<uint16_t*>(out.data)[at + r] = out.type == Float::f16 ? to_f16(lanes[r]) : to_bf16(lanes[r]);
    }
  }
}

// The minimums of a group whose head is at `head`.
inline Floats minimums_of(const Q4View& weight, const uint8_t* head, Floats scale) {
  const uint8_t* at = head + weight.scale_bytes();
  if (weight.zero_points) return multiply(load_bytes(at), multiply(scale, broadcast(-1.0f)));
  return load_scales(at, weight.scale_type);
}

// Adds to a token's totals what its high codes make of the blocks from `at` on. There are few, and as many in every block:
// a loop of their own costs less than a look in each unit.
template <Q4Kind kKind, int kUnit, int kBlocks, int T>
inline void add_high(const UnitSums<kKind>& unit_sums, const Q4View& weight, const uint8_t* at,
                     const QuantizedRows& x, int64_t token, int t, Floats (&total)[kBlocks][T]) {
  const HighQuad* quad = x.high + (token + t) * x.num_groups;
  const int64_t group_bytes = weight.group_bytes(), head_bytes = weight.head_bytes(), stride = weight.block_bytes();
  const uint32_t units = uint32_t(weight.units_per_group);
  for (const HighQuad* end = quad + x.num_high[token + t]; quad < end; ++quad) {
    const uint32_t unit = uint32_t(quad->unit), group = units == 1 ? unit : unit / units;
    const uint8_t* head = at + group * group_bytes;
    const uint8_t* nibbles = head + head_bytes + (unit - group * units) * (kLanes * kUnit / 2);
    nibbles += quad->quad / 2 * (4 * kLanes);
    const Floats scale = broadcast(quad->scale);
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const Ints products = unit_sums.quad_products(nibbles + b * stride, quad->quad % 2, *quad);
      total[b][t] = fma(to_floats(products), multiply(load_scales(head + b * stride, weight.scale_type), scale), total[b][t]);
    }
  }
}

constexpr int64_t kAhead = 32 << 10;  // bytes: what a thread reads while memory answers, and while small operations run

// The address that is read kAhead bytes later than `at`, or null.
inline const uint8_t* soon_after(const uint8_t* at, const Q4Ahead& ahead) {
  if (ahead.end == nullptr || ahead.end - at > kAhead) return ahead.end == nullptr ? nullptr : at + kAhead;
  return ahead.next == nullptr ? nullptr : ahead.next + (kAhead - (ahead.end - at));
}

// Inlined by force: GCC drops calls of a function that does nothing else.
[[gnu::always_inline]] inline void ask_for(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

}  // namespace
}  // namespace modulm::MODULM_ISA
