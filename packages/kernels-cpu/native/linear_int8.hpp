// Products with weights of 5 to 8 bits and activations of `quantize_activations.hpp`: sums of a few inputs are exact
// integers, and only they are scaled and added up in float32.
//
// Layout: panels of 32 output rows as in linear_dense.hpp, in blocks of 32 inputs. A block has 8 quads; in a quad 4
// inputs of each row lie together, so that one load gives 4 inputs of neighbouring rows, a row per 32-bit lane.
//   8 bits: [quad][row][4] bytes, 1024 in all.
//   6 bits: two halves of 4 quads, each: 2 x 128 bytes of low nibbles (an even quad low, the odd one after it high),
//           then 128 bytes of upper bits, two for each quad from bit 0 on. 768 in all.
//   5 bits: 4 x 128 bytes of low nibbles, then 128 bytes of upper bits, bit q for quad q. 640 in all.
// Decoding reads all weights for each token, so fewer bytes are faster; many tokens widen a chunk to 8 bits first.
#pragma once

#include <cstdint>

#include "linear_dense.hpp"
#include "quantize_activations.hpp"

namespace modulm {

inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kChunkBlocks = 8;  // widened at once: 8 KiB

enum class Codes : int { bits8 = 0, bits6 = 1, bits5 = 2 };

inline constexpr int64_t block_bytes(Codes codes) {
  return codes == Codes::bits8 ? 1024 : codes == Codes::bits6 ? 768 : 640;
}

// How codes become numbers. Integer kernels take the first two alike; they differ in how a single value is rounded.
enum class Zero : int {
  shift = 0,     // (code - zero) * scale
  product = 1,   // code * scale + (-zero * scale), two roundings as `GroupedInt` says
  minimums = 2,  // code * scale + minimum
};

struct Int8Panels {
  Codes codes;
  Zero kind;
  int32_t zero;
  int64_t rows;
  int64_t inputs;
  int64_t unit;    // inputs that share a scale of weights and of activations: 16 or 32
  int64_t group;   // units per scale of the weights
  const uint8_t* data;
  Float scale_type;  // f32 or f16
  const uint8_t* scales;    // [panel][group][32]
  const uint8_t* minimums;  // same shape, or null

  int64_t blocks() const { return (inputs + kBlockInputs - 1) / kBlockInputs; }
  int64_t units() const { return (inputs + unit - 1) / unit; }
  int64_t groups() const { return (units() + group - 1) / group; }
  int64_t panel_bytes() const { return blocks() * block_bytes(codes); }
  int64_t scale_at(int64_t panel, int64_t group_number) const {
    return (panel * groups() + group_number) * kPanelRows * bytes_of(scale_type);
  }
};

struct Int8Kernels {
  int64_t tile;
  int64_t most_tokens;

  // Panels [begin, end) for tokens [first, last) of activations quantised in groups of `unit`.
  void (*fast)(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
               int64_t first, int64_t last);

  // The same from float32 activations (`DenseKernels::pack_tokens`) and dequantised weights.
  void (*exact)(const Int8Panels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                int64_t first, int64_t last);
};

MODULM_BYTE_FAMILY(Int8Kernels, int8)

}  // namespace modulm
