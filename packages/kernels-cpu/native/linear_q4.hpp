// Matrix products with 4-bit weights, in a layout of our own that all 4-bit formats reach at load.
//
// A unit is 32 inputs (16 where a group is no multiple of 32); activations are quantised unit by unit. A block is
// `lanes` output rows, one per 32-bit lane of a vector, and lies in memory in the order in which it is used: for each
// group
//   scales[lanes], minimums[lanes] (kind `minimums` only; bytes where they are zero points), then for each of its units, for each 8 inputs j of the unit,
//   lanes x 4 bytes: byte b of lane r has input 8j + b of row r in its low nibble and input 8j + 4 + b in its high one.
// So one load gives 4 inputs of every row, and 4 more after a shift. Rows past the last are zeros.
#pragma once

#include <cstdint>

#include "dispatch.hpp"
#include "float_types.hpp"
#include "linear_dense.hpp"
#include "quantize_activations.hpp"

namespace modulm {

enum class Q4Kind : int {
  minimums = 0,  // value = scale * code + minimum
  offset = 1,    // value = scale * code - offset * scale: formats with one zero point, whose minimums need no memory
  codebook = 2,  // value = scale * values[code]
};

// How scales lie in memory, and minimums where they are floats. The last two are for scales alone: a byte each, where
// the others of their bits are zeros in all of them.
enum class ScaleType : int {
  f32 = 0,
  f16 = 1,
  f16_byte = 2,  // bits 7 to 14 of float16: what is positive and has 3 bits of fraction, as all of e4m3 that NVFP4 has
  exponent = 3,  // of float32: powers of two, as MXFP4 has
};

inline constexpr int64_t bytes_of(ScaleType type) {
  return type == ScaleType::f32 ? 4 : type == ScaleType::f16 ? 2 : 1;
}

namespace {

// Number `at` of scales or minimums.
[[maybe_unused]] inline float number_at(const uint8_t* from, ScaleType type, int64_t at) {
  switch (type) {
    case ScaleType::f32: return reinterpret_cast<const float*>(from)[at];
    case ScaleType::f16: return from_f16(reinterpret_cast<const uint16_t*>(from)[at]);
    case ScaleType::f16_byte: return from_f16(uint16_t(from[at] << 7));
    case ScaleType::exponent: break;
  }
  return __builtin_bit_cast(float, uint32_t(from[at]) << 23);
}

// Calls body.template operator()<kind>() with what the weight is: code for each kind is made apart.
template <class Body>
inline void with_kind(Q4Kind kind, const Body& body) {
  switch (kind) {
    case Q4Kind::minimums: return body.template operator()<Q4Kind::minimums>();
    case Q4Kind::offset: return body.template operator()<Q4Kind::offset>();
    case Q4Kind::codebook: return body.template operator()<Q4Kind::codebook>();
  }
}

}  // namespace

struct Q4View {
  uint8_t* data;
  Q4Kind kind;
  ScaleType scale_type;
  int64_t out_features, in_features;
  int64_t lanes;
  int64_t unit;             // inputs per unit: 32 or 16
  int64_t units_per_group;
  int64_t groups;           // per row
  int32_t offset;           // of kind `offset`
  float values[16];         // of kind `codebook`
  int8_t steps[16];         // values in whole steps of `step`, for the integer path
  float step;
  bool zero_points;         // of kind `minimums`: bytes, each minimum being -byte * scale

  int64_t units() const { return groups * units_per_group; }
  int64_t scale_bytes() const { return lanes * bytes_of(scale_type); }
  int64_t minimum_bytes() const {
    return kind != Q4Kind::minimums ? 0 : zero_points ? lanes : scale_bytes();
  }
  int64_t head_bytes() const { return scale_bytes() + minimum_bytes(); }
  int64_t unit_bytes() const { return lanes * unit / 2; }
  int64_t group_bytes() const { return head_bytes() + units_per_group * unit_bytes(); }
  int64_t block_bytes() const { return groups * group_bytes(); }
  int64_t blocks() const { return (out_features + lanes - 1) / lanes; }
};

// Where results go: row-major numbers of `type`, rows `stride` numbers apart.
struct Q4Out {
  void* data;
  Float type;
  int64_t stride;
};

// Where memory goes on for the thread that reads a weight's blocks up to `end`: what is read soon is asked for now. Null
// where nothing follows, or nothing is to be asked for.
struct Q4Ahead {
  const uint8_t* end = nullptr;
  const uint8_t* next = nullptr;
};

struct LinearQ4Kernels {
  int64_t lanes;       // rows per block
  int64_t max_tokens;  // tokens that share one unpacked block: a good share of tokens is a multiple of it

  // out[t, rows of blocks [first, last)] for tokens [begin, end), from quantised activations. Sums of a unit are exact
  // integers; units are added up in order, then the quads set apart, with fused multiply-adds in float32: all
  // instruction sets agree bit by bit. `begin` is a multiple of the activations' tile, which is at most `max_tokens` and at least what is left, or
  // `max_tokens`.
  void (*fast)(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
               const Q4Out& out, const Q4Ahead& ahead);

  // The same from float32 activations [tokens, units * unit], padded with zeros, and dequantised weights.
  void (*exact)(const Q4View& weight, const float* x, int64_t first, int64_t last, int64_t begin, int64_t end,
                const Q4Out& out);
};

MODULM_BYTE_FAMILY(LinearQ4Kernels, linear_q4)

MODULM_TILED(Q4View, widened_q4)  // a panel is two blocks

// The weight as `GroupedInt` and `Codebook4` have it: codes [out_features, in_features / 2], low nibble first.
struct Q4Source {
  const uint8_t* codes;
  const void* scales;    // [out_features, groups]
  const void* minimums;  // same shape, kind `minimums` only; uint8 where they are zero points
  Float type;            // of scales, and of minimums that are none: f32 or f16
};

struct PackQ4Kernels {
  // Fill blocks [first, last). Scales that change type must fit the new one.
  void (*pack)(const Q4View& weight, const Q4Source& source, int64_t first, int64_t last);

  // out[i, :] = row index[i], for i in [begin, end): scale * code, then + minimum, each rounded to float32.
  void (*rows)(const Q4View& weight, const int64_t* index, int64_t begin, int64_t end, const Q4Out& out);

  // x [tokens, size] of `type` -> float32 [tokens, padded], filled up with zeros.
  void (*widen)(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, int64_t size, int64_t padded,
                float* out);
};

MODULM_FAMILY(PackQ4Kernels, pack_q4)

}  // namespace modulm
