// Scales of a panel, where sums of integers start, and what the high codes of activations add. Included by kernels only.
#pragma once

#include "linear_dense_tile.hpp"
#include "linear_int8_codes.hpp"

namespace modulm::MODULM_ISA {
namespace {

inline Vec load_scales(const uint8_t* from, Float type, int lane) {
  if (type == Float::f16) return load(reinterpret_cast<const Half*>(from) + lane);
  return load(reinterpret_cast<const float*>(from) + lane);
}

// What a tile needs to know of its panel, besides the codes.
struct Scales {
  const Int8Panels& weight;
  int64_t panel;

  int64_t group_of(int64_t unit) const { return weight.group == 1 ? unit : unit / weight.group; }
  Vec scale(int64_t group, int row) const {
    return load_scales(weight.scales + weight.scale_at(panel, group), weight.scale_type, row);
  }
  Vec minimum(int64_t group, int row) const {
    return load_scales(weight.minimums + weight.scale_at(panel, group), weight.scale_type, row);
  }
};

// Where a sum of integers starts, `sum` being that of the activations: so that codes count from their zero. AVX2 takes
// codes of 8 bits as signed, 128 less than they are.
template <Codes range>
inline int32_t start_of(const Int8Panels& weight, int32_t sum) {
  const int32_t taken = range == Codes::bits8 && kSignedBytes ? 128 : 0;
  return (taken - (weight.kind == Zero::minimums ? 0 : weight.zero)) * sum;
}

// Adds to `sums` [32] what the high codes of a token's activations make of a panel.
template <Codes width, Codes range, int unit>
void add_high(const Scales& scales, const uint8_t* panel, const QuantizedRows& x, int64_t token, float* sums) {
  const HighQuad* high = x.high + token * x.num_groups;
  for (const HighQuad* end = high + x.num_high[token]; high < end; ++high) {
    const int64_t input = high->unit * unit + high->quad * 4, group = scales.group_of(high->unit);
    const uint8_t* block = panel + input / kBlockInputs * block_bytes(width);
    const Ints start = all_ints(start_of<range>(scales.weight, high->sum)), four = four_inputs(high->codes);
    for (int row = 0; row < kPanel; row += kLanes) {
      const Ints codes = any_quad_codes<width>(block, row, int(input % kBlockInputs / 4));
      const Vec factor = scales.scale(group, row) * all(high->scale);
      store(sums + row, fma(to_floats(add_products<range>(start, codes, four)), factor, load(sums + row)));
    }
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
