// Products with weights of 2 to 8 bits and activations of `quantize_activations.hpp`: sums of a few inputs are exact
// integers, and only they are scaled and added up in float32.
//
// Layout: panels of 32 output rows as in linear_dense.hpp, in blocks of 32 inputs. A block has 8 quads; in a quad 4
// inputs of each row lie together, so that one load gives 4 inputs of neighbouring rows, a row per 32-bit lane.
//   8 bits: [quad][row][4] bytes, 1024 in all.
//   6 bits: two halves of 4 quads, each: 2 x 128 bytes of low nibbles (an even quad low, the odd one after it high),
//           then 128 bytes of upper bits, two for each quad from bit 0 on. 768 in all.
//   5 bits: 4 x 128 bytes of low nibbles, then 128 bytes of upper bits, bit q for quad q. 640 in all.
//   4 bits: 4 x 128 bytes of two quads, the even one in the low nibbles. 512 in all.
//   2 bits: 2 x 128 bytes of four quads, the first in the lowest bits. 256 in all.
//   3 bits: the same, then 128 bytes of upper bits, bit q for quad q. 384 in all.
// Decoding reads all weights for each token, so fewer bytes are faster; many tokens widen a chunk to 8 bits first.
#pragma once

#include <cstdint>

#include "linear_dense.hpp"
#include "quantize_activations.hpp"

namespace modulm {

inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kChunkBlocks = 8;  // widened at once: 8 KiB

enum class Codes : int { bits2 = 2, bits3 = 3, bits4 = 4, bits5 = 5, bits6 = 6, bits8 = 8, table3 = 19, table4 = 20 };

// Of `table` codes, codes of 8 bits are what stands in a table at their place.
inline constexpr bool in_table(Codes codes) { return int(codes) >= 16; }
inline constexpr int bits_of(Codes codes) { return int(codes) & 15; }

inline constexpr int64_t kQuadBytes = 4 * kPanelRows;

inline constexpr int64_t block_bytes(Codes codes) { return bits_of(codes) * kQuadBytes; }

// Where a quad of a block has its bits: `low_bits` of each of the bytes at `low`, and those above them at `high`.
struct QuadPlace {
  int low, low_shift, low_bits;
  int high, high_shift, high_bits;
};

inline constexpr QuadPlace place_of(Codes codes, int quad) {
  constexpr int bytes = int(kQuadBytes);
  switch (Codes(bits_of(codes))) {
    case Codes::bits2: return {quad / 4 * bytes, quad % 4 * 2, 2, 0, 0, 0};
    case Codes::bits3: return {quad / 4 * bytes, quad % 4 * 2, 2, 2 * bytes, quad, 1};
    case Codes::bits4: return {quad / 2 * bytes, quad % 2 * 4, 4, 0, 0, 0};
    case Codes::bits5: return {quad / 2 * bytes, quad % 2 * 4, 4, 4 * bytes, quad, 1};
    case Codes::bits6: {
      const int half = quad / 4 * 3 * bytes;
      return {half + quad % 4 / 2 * bytes, quad % 2 * 4, 4, half + 2 * bytes, quad % 4 * 2, 2};
    }
    default: break;
  }
  return {quad * bytes, 0, 8, 0, 0, 0};
}

// How codes become numbers. Integer kernels take the first two alike; they differ in how a single value is rounded.
enum class Zero : int {
  shift = 0,     // (code - zero) * scale
  product = 1,   // code * scale + (-zero * scale), two roundings as `GroupedInt` says
  minimums = 2,  // code * scale + minimum
  points = 3,    // the same, each minimum being -byte * scale
};

// Scales, and minimums, that are whole multiples of coarser ones: `unit` * coarse * multiple, exactly. Multiples are signed
// bytes; or nibbles, those of scales low and those of minimums high in one byte.
struct Steps {
  int64_t span = 0;  // groups per coarse scale, which are a chunk's; 0: scales are numbers of their own
  bool in_nibbles = false;
  float unit = 1.0f;
  const uint8_t* scales = nullptr;    // coarse ones, float16 [panel][groups / span][32]
  const uint8_t* minimums = nullptr;  // same shape, or null
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
  const uint8_t* minimums;  // same shape and type, or bytes (`points`), or null
  Steps steps{};            // `scales` and `minimums` are multiples
  uint8_t table[16] = {};   // of `table` codes

  int64_t blocks() const { return (inputs + kBlockInputs - 1) / kBlockInputs; }
  int64_t units() const { return (inputs + unit - 1) / unit; }
  int64_t groups() const { return (units() + group - 1) / group; }
  int64_t panel_bytes() const { return blocks() * block_bytes(codes); }
  bool has_minimums() const { return kind == Zero::minimums || kind == Zero::points; }
  int64_t number_at(int64_t panel, int64_t group_number) const {
    return (panel * groups() + group_number) * kPanelRows;
  }
  int64_t scale_at(int64_t panel, int64_t group_number) const {
    return number_at(panel, group_number) * (steps.span > 0 ? 1 : bytes_of(scale_type));
  }
  int64_t minimum_at(int64_t panel, int64_t group_number) const {
    return number_at(panel, group_number) * (kind == Zero::points || steps.span > 0 ? 1 : bytes_of(scale_type));
  }
  int64_t coarse_groups() const { return (groups() + steps.span - 1) / steps.span; }
  int64_t coarse_at(int64_t panel, int64_t group_number) const {
    return (panel * coarse_groups() + group_number / steps.span) * kPanelRows * 2;
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

MODULM_TILED(Int8Panels, widened_int8)

}  // namespace modulm
