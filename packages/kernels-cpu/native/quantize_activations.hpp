// Activations -> signed bytes with one scale per group of a row: what the integer kernels multiply by.
//
// One large input leaves the others of its group few of their 8 bits, and the residual streams of language models have
// such inputs. So where it pays, a quad (4 neighbours, what one lane of a byte product holds) is set apart: its codes
// have two bytes, and the upper ones are listed beside the rest.
//
// For each group, in float32: `first` is the largest magnitude, `second` the largest without the quad that holds it,
// and `mean` the mean of `first` over the row's groups. Where (first - second) / mean * (first + second) > mean that
// quad is set apart, and the limit is the larger of `second` and first / 127, else it is `first`. scale = limit / 127,
// code = nearest even of x * (127 / limit). Codes of the quad set apart are 128 * high + low with low from -64 to 63. A
// group whose largest magnitude is below 2^-100 counts as zero. One with an infinity or a NaN gets the scale NaN, so
// that it shows in the result. Every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "dispatch.hpp"
#include "float_types.hpp"

namespace modulm {

// What is high of the codes of a quad set apart.
struct HighQuad {
  int32_t unit;     // group of the row
  int16_t quad;     // in the group: inputs 4 * quad to 4 * quad + 3
  int16_t sum;      // of the codes
  int8_t codes[4];  // -126 to 126
  float scale;      // of these codes: 128 times that of the group
};

// Where quantised rows lie. Group g of row r is number `at(r, g)` of all: its `group` codes begin at codes[at * group],
// its scale is scales[at]. Rows are row-major where `tile` is 1; else `tile` rows lie group by group beside each other,
// so that a kernel that multiplies them together finds them at constant distances. The last group of a row is filled up
// with zeros.
struct QuantizedRows {
  int64_t num_groups;
  int64_t group;        // inputs per group: 16 or 32
  int8_t* codes;        // -127 to 127: whole codes, or what is low of them
  float* scales;
  float* sums;          // scale * sum of the whole codes: what minimums are multiplied by
  int32_t* code_sums;   // sum of `codes`: corrects for codes of weights that were made unsigned
  HighQuad* high;       // row r has num_high[r] of them from high[r * num_groups] on, in order, at most one per group
  int32_t* num_high;

  int64_t tile = 1;     // a power of two

  int64_t row_size() const { return num_groups * group; }
  int64_t at(int64_t row, int64_t g) const { return (row & -tile) * num_groups + g * tile + (row & (tile - 1)); }

  // Lay the arrays out in `memory`, which must be aligned to 64 bytes and hold `bytes_for(...)`.
  static QuantizedRows in(void* memory, int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t groups = (size + group - 1) / group, count = ((rows + tile - 1) & -tile) * groups;
    uint8_t* at = static_cast<uint8_t*>(memory);
    const auto take = [&](int64_t bytes) { return at += padded(bytes), at - padded(bytes); };
    int8_t* codes = reinterpret_cast<int8_t*>(take(count * group));
    float* scales = reinterpret_cast<float*>(take(count * 4));
    float* sums = reinterpret_cast<float*>(take(count * 4));
    int32_t* code_sums = reinterpret_cast<int32_t*>(take(count * 4));
    HighQuad* high = reinterpret_cast<HighQuad*>(take(rows * groups * int64_t(sizeof(HighQuad))));
    return {groups, group, codes, scales, sums, code_sums, high, reinterpret_cast<int32_t*>(take(rows * 4)), tile};
  }

  static int64_t bytes_for(int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t groups = (size + group - 1) / group, count = ((rows + tile - 1) & -tile) * groups;
    return padded(count * group) + 3 * padded(count * 4) + padded(rows * groups * int64_t(sizeof(HighQuad))) +
           padded(rows * 4);
  }

 private:
  static int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

struct ActivationKernels {
  // Quantise rows [begin, end) of x, which have `size` numbers of `type` each and start `stride` numbers apart.
  void (*quantize_rows)(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, int64_t size,
                        const QuantizedRows& out);
};

MODULM_FAMILY(ActivationKernels, activations)

}  // namespace modulm
