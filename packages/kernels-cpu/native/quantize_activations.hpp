// Activations -> signed bytes with one scale per group of a row: what the integer kernels multiply by.
//
// For each group: scale = largest magnitude / 127, code = nearest even of x * (127 / largest magnitude), in float32.
// A group whose largest magnitude is below 2^-100 counts as zero. One with an infinity or a NaN gets the scale NaN, so
// that it shows in the result. Every instruction set gives the same bits.
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
  int64_t group;        // inputs per group: a multiple of 16, at most 512
  int8_t* codes;        // -127 to 127
  float* scales;
  float* sums;          // scale * sum of the codes: what minimums are multiplied by
  int32_t* code_sums;   // sum of the codes: corrects for codes of weights that were made unsigned

  int64_t tile = 1;     // a power of two

  int64_t row_size() const { return num_groups * group; }
  int64_t at(int64_t row, int64_t g) const { return (row & -tile) * num_groups + g * tile + (row & (tile - 1)); }

  // Lay the four arrays out in `memory`, which must be aligned to 64 bytes and hold `bytes_for(...)`.
  static QuantizedRows in(void* memory, int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t groups = (size + group - 1) / group;
    rows = (rows + tile - 1) & -tile;
    int8_t* codes = static_cast<int8_t*>(memory);
    float* scales = reinterpret_cast<float*>(codes + padded(rows * groups * group));
    const int64_t floats = padded(rows * groups * 4) / 4;
    return {groups, group, codes, scales, scales + floats, reinterpret_cast<int32_t*>(scales + 2 * floats),
            tile};
  }

  static int64_t bytes_for(int64_t rows, int64_t size, int64_t group, int64_t tile = 1) {
    const int64_t groups = (size + group - 1) / group;
    rows = (rows + tile - 1) & -tile;
    return padded(rows * groups * group) + 3 * padded(rows * groups * 4);
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
