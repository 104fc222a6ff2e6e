// Scales of a panel, where sums of integers start, and what the high codes of activations add. Included by kernels only.
#pragma once

#include "linear_dense_tile.hpp"
#include "linear_int8_unpack.hpp"

namespace modulm::MODULM_ISA {
namespace {

inline Vec load_scales(const uint8_t* from, Float type, int lane) {
  if (type == Float::f16) return load(reinterpret_cast<const Half*>(from) + lane);
  return load(reinterpret_cast<const float*>(from) + lane);
}

// `Multiples::odd` of a group, of the byte that two share.
inline Vec odd_times(const uint8_t* from, int64_t group) {
  const Ints pair = load_as_ints<uint8_t>(from), nibble = both(group % 2 == 0 ? pair : shifted_right<4>(pair), all_ints(15));
  return to_floats(either(shifted_right<-1>(nibble), all_ints(1)));
}

// Scales and minimums of a panel.
struct Scales {
  const Int8Panels& weight;
  const uint8_t *scales, *minimums, *coarse_scales, *coarse_minimums;
  int64_t scale_bytes, minimum_bytes;  // of a group
  int group_shift;                     // units of a group, if it is a power of two, else -1

  Scales(const Int8Panels& of, int64_t panel)
      : weight(of), scales(of.scales + of.scale_at(panel, 0)), minimums(of.minimums), coarse_scales(of.steps.scales),
        coarse_minimums(of.steps.minimums), scale_bytes(of.scale_at(0, 1)), minimum_bytes(of.minimum_at(0, 1)),
        group_shift((of.group & (of.group - 1)) == 0 ? __builtin_ctzll(uint64_t(of.group)) : -1) {
    if (of.has_minimums()) minimums += of.minimum_at(panel, 0);
    if (of.steps.span == 0) return;
    coarse_scales += of.coarse_at(panel, 0);
    if (of.has_minimums()) coarse_minimums += of.coarse_at(panel, 0);
  }

  int64_t group_of(int64_t unit) const { return group_shift >= 0 ? unit >> group_shift : unit / weight.group; }

  Vec scale(int64_t group, int row) const {
    if (weight.steps.span > 0) return coarse(coarse_scales, group, row) * scale_times(group, row);
    return load_scales(scales + group * scale_bytes, weight.scale_type, row);
  }
  // Where the weight has minimums. `scale` is that of the same group and rows.
  Vec minimum(int64_t group, int row, Vec scale) const {
    if (weight.kind == Zero::points) {
      return scale * (all(0.0f) - to_floats(load_as_ints<uint8_t>(minimums + group * minimum_bytes + row)));
    }
    if (weight.steps.span > 0) return coarse(coarse_minimums, group, row) * minimum_times(group, row);
    return load_scales(minimums + group * minimum_bytes, weight.scale_type, row);
  }

  // What scales and minimums are multiples of, and how many times.
  Vec coarse(const uint8_t* from, int64_t group, int row) const {
    const int64_t at = group / weight.steps.span * (kPanelRows * 2);
    return load_scales(from + at, Float::f16, row) * all(weight.steps.unit);
  }
  Vec scale_times(int64_t group, int row) const {
    if (weight.steps.multiples == Multiples::odd) return odd_times(scales + group / 2 * kPanelRows + row, group);
    return times<0>(scales + group * scale_bytes + row);
  }
  Vec minimum_times(int64_t group, int row) const { return times<4>(minimums + group * minimum_bytes + row); }

 private:
  template <int shift>
  Vec times(const uint8_t* from) const {
    if (weight.steps.multiples == Multiples::bytes) return to_floats(load_as_ints<int8_t>(from));
    return to_floats(both(shifted_right<shift>(load_as_ints<uint8_t>(from)), all_ints(15)));
  }
};

// The same for units [first, last) of a chunk as numbers, which tiles read often: [unit][row].
struct ChunkScales {
  const Int8Panels& weight;
  int64_t first = 0;
  alignas(64) float scales[kChunkBlocks * 2 * kPanelRows], minimums[kChunkBlocks * 2 * kPanelRows];

  explicit ChunkScales(const Int8Panels& of) : weight(of) {}

  Vec scale(int64_t unit, int row) const { return load(scales + (unit - first) * kPanelRows + row); }
  Vec minimum(int64_t unit, int row) const { return load(minimums + (unit - first) * kPanelRows + row); }

  void fill(const Scales& from, int64_t begin, int64_t end) {
    first = begin;
    for (int row = 0; row < kPanel; row += kLanes) {
      weight.steps.span > 0 ? fill_multiples(from, end, row) : fill_numbers(from, end, row);
    }
  }

 private:
  void put(float* to, int64_t unit, int row, Vec numbers) { store(to + (unit - first) * kPanelRows + row, numbers); }

  void fill_numbers(const Scales& from, int64_t end, int row) {
    for (int64_t unit = first; unit < end;) {
      const int64_t group = from.group_of(unit), next = (group + 1) * weight.group, stop = next < end ? next : end;
      const Vec scale = from.scale(group, row);
      const Vec minimum = weight.has_minimums() ? from.minimum(group, row, scale) : scale;
      for (; unit < stop; ++unit) {
        put(scales, unit, row, scale);
        if (weight.has_minimums()) put(minimums, unit, row, minimum);
      }
    }
  }

  // A chunk has one coarse scale, see `Steps`.
  void fill_multiples(const Scales& from, int64_t end, int row) {
    const int64_t group = from.group_of(first);
    const Vec coarse = from.coarse(from.coarse_scales, group, row);
    if (weight.steps.multiples == Multiples::odd) return fill_odd(from.scales + row, from.group_shift, end, coarse, scales + row);
    for (int64_t unit = first; unit < end; ++unit) put(scales, unit, row, coarse * from.scale_times(from.group_of(unit), row));
    if (!weight.has_minimums()) return;
    const Vec low = from.coarse(from.coarse_minimums, group, row);
    for (int64_t unit = first; unit < end; ++unit) put(minimums, unit, row, low * from.minimum_times(from.group_of(unit), row));
  }

  void fill_odd(const uint8_t* pairs, int group_shift, int64_t end, Vec coarse, float* to) const {
    for (int64_t unit = first; unit < end; ++unit, to += kPanelRows) {
      const int64_t group = unit >> group_shift;
      store(to, coarse * odd_times(pairs + group / 2 * kPanelRows, group));
    }
  }
};

// Where a sum of integers starts, `sum` being that of the activations: so that codes count from their zero. AVX2 takes
// codes of 8 bits as signed, 128 less than they are.
template <Codes range>
inline int32_t start_of(const Int8Panels& weight, int32_t sum) {
  const int32_t taken = range == Codes::bits8 && kSignedBytes ? 128 : 0;
  return (taken - (weight.has_minimums() ? 0 : weight.zero)) * sum;
}

// Adds to `sums` [32] what the high codes of a token's activations make of a panel.
template <Codes width, Codes range, int unit>
void add_high(const Scales& scales, const uint8_t* panel, const QuantizedRows& x, int64_t token, float* sums) {
  const HighQuad* high = x.high + token * x.num_groups;
  for (const HighQuad* end = high + x.num_high[token]; high < end; ++high) {
    const int64_t input = high->unit * unit + high->quad * 4, group = scales.group_of(high->unit);
    const Ints start = all_ints(start_of<range>(scales.weight, high->sum)), four = four_inputs(high->codes);
    for (int row = 0; row < kPanel; row += kLanes) {
      const Ints codes = any_quad_codes<width>(scales.weight, panel, row, input / 4);
      const Vec factor = scales.scale(group, row) * all(high->scale);
      store(sums + row, fma(to_floats(add_products<range>(start, codes, four)), factor, load(sums + row)));
    }
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
