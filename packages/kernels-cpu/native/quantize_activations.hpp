// Activations -> signed bytes with one scale per group of a row: what the integer kernels multiply by.
//
// One large input leaves the others of its group few of their 8 bits, and the residual streams of language models have
// such inputs. So quads (4 neighbours, what one lane of a byte product holds) that pay for it have codes of two bytes.
//
// For each group, in float32: `first` is its largest magnitude, `second` the largest among quads that do not reach
// `first`, and `mean` the mean of `first` over the row's groups. Where (first - second) / mean * (first + second) > mean
// the limit is the larger of `second` and first / 127, else it is `first`. scale = limit / 127, code = nearest even of
// x * (127 / limit). Codes of a quad beyond the limit are 128 * high + low with low from -64 to 63; in other quads high
// is 0. A group whose largest magnitude is below 2^-100 counts as zero. One with an infinity or a NaN gets the scale
// NaN, so that it shows in the result. Every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "dispatch.hpp"
#include "float_types.hpp"

namespace modulm {

// Where quantised rows lie. Group g of row r is number `at(r, g)` of all: its `group` codes begin at codes[at * group],
// its scale is scales[at]. Rows are row-major where `tile` is 1; else `tile` rows lie group by group beside each other,
// so that a kernel that multiplies them together finds them at constant distances. The last group of a row is filled up
// with zeros.
struct QuantizedRows {
  int64_t num_groups;
  int64_t group;        // inputs per group: 16 or 32
  int8_t* codes;        // -127 to 127: whole codes, or what is low of them
  int8_t* high;         // beside `codes`: 128 times it comes to them; -126 to 126
  float* scales;
  float* sums;          // scale * sum of the codes: what minimums are multiplied by
  int32_t* code_sums;   // sum of the codes: corrects for codes of weights that were made unsigned
  uint8_t* high_quads;  // per group, bit j: quad j, inputs 4j to 4j + 3, may have `high` other than 0

  int64_t tile = 1;     // a power of two

  int64_t row_size() const { return num_groups * group; }
  int64_t at(int64_t row, int64_t g) const { return (row & -tile) * num_groups + g * tile + (row & (tile - 1)); }

  // Lay the arrays out in `memory`, which must be aligned to 64 bytes and hold `bytes_for(...)`.
  static QuantizedRows in(void* memory, int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t groups = (size + group - 1) / group, count = ((rows + tile - 1) & -tile) * groups;
    uint8_t* at = static_cast<uint8_t*>(memory);
    const auto take = [&](int64_t bytes) { return at += padded(bytes), at - padded(bytes); };
    int8_t* codes = reinterpret_cast<int8_t*>(take(count * group));
    int8_t* high = reinterpret_cast<int8_t*>(take(count * group));
    float* scales = reinterpret_cast<float*>(take(count * 4));
    float* sums = reinterpret_cast<float*>(take(count * 4));
    int32_t* code_sums = reinterpret_cast<int32_t*>(take(count * 4));
    return {groups, group, codes, high, scales, sums, code_sums, take(count), tile};
  }

  static int64_t bytes_for(int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t count = ((rows + tile - 1) & -tile) * ((size + group - 1) / group);
    return 2 * padded(count * group) + 3 * padded(count * 4) + padded(count);
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
