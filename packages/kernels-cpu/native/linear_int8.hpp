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
//   vectors: see linear_int8_vectors.hpp.
// Decoding reads all weights for each token, so fewer bytes are faster; many tokens widen a chunk to 8 bits first.
#pragma once

#include <cstdint>

#include "linear_dense.hpp"
#include "quantize_activations.hpp"

namespace modulm {

inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kChunkBlocks = 8;  // widened at once: 8 KiB

enum class Codes : int {
  bits2 = 2, bits3 = 3, bits4 = 4, bits5 = 5, bits6 = 6, bits8 = 8, table3 = 19, table4 = 20, vectors = 32
};

// Of `table` codes, codes of 8 bits are what stands in a table at their place.
inline constexpr bool in_table(Codes codes) { return int(codes) >= 16 && codes != Codes::vectors; }
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

// How multiples of a coarser scale lie.
enum class Multiples : int {
  bytes = 0,  // signed
  both = 1,   // nibbles of one byte, those of scales low and those of minimums high
  odd = 2,    // 2 * nibble + 1, those of a group with an even number low and those of the next high in one byte
};

// Scales, and minimums, that are whole multiples of coarser ones: `unit` * coarse * multiple, exactly.
struct Steps {
  int64_t span = 0;  // groups per coarse scale, which are a chunk's; 0: scales are numbers of their own
  Multiples multiples = Multiples::bytes;
  float unit = 1.0f;
  const uint8_t* scales = nullptr;    // coarse ones, float16 [panel][groups / span][32]
  const uint8_t* minimums = nullptr;  // same shape, or null
};

// Codes that are vectors of a table: which one for each 4 or 8 inputs, and for 8 inputs their signs, or whether all are
// shifted.
struct Vectors {
  const uint8_t* table = nullptr;  // [places][length]; 128 is zero, 0 there is not
  int length = 8;                  // inputs of a vector
  int planes = 0;                  // bits of a place above the lowest eight, at most 3
  int signs = 0;                   // bits of them for 8 inputs: 0, 8, or 7, where the eighth makes their number even
  int shift = 0;                   // what a set bit adds to codes; 0: there are no such bits
  bool has_wide_shifts = false;    // a bit is for 32 inputs, not for 8

  int64_t place_bytes() const { return kPanelRows + planes * kPanelRows / 8; }
  int64_t shift_bytes() const { return shift != 0 && !has_wide_shifts ? kPanelRows / 8 : 0; }
  int64_t eight_bytes() const { return 8 / length * place_bytes() + shift_bytes() + signs * kPanelRows / 8; }
  int64_t head_bytes() const { return has_wide_shifts ? kPanelRows / 8 : 0; }
  int64_t bytes() const { return head_bytes() + kBlockInputs / 8 * eight_bytes(); }  // of a block
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
  Vectors vectors{};

  int64_t blocks() const { return (inputs + kBlockInputs - 1) / kBlockInputs; }
  int64_t units() const { return (inputs + unit - 1) / unit; }
  int64_t groups() const { return (units() + group - 1) / group; }
  int64_t bytes_of_block() const { return codes == Codes::vectors ? vectors.bytes() : block_bytes(codes); }
  int64_t panel_bytes() const { return blocks() * bytes_of_block(); }
  bool has_minimums() const { return kind == Zero::minimums || kind == Zero::points; }
  int64_t number_at(int64_t panel, int64_t group_number) const {
    return (panel * groups() + group_number) * kPanelRows;
  }
  int64_t scale_at(int64_t panel, int64_t group_number) const {
    if (steps.multiples == Multiples::odd) return (panel * groups() / 2 + group_number / 2) * kPanelRows;
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

#if defined(__x86_64__)
namespace amx { extern const Int8Kernels int8_in_tiles; }
#endif

inline constexpr int64_t kFewestOfBytes = 10;  // tokens whose bytes are multiplied in tiles

// The same products of bytes in tiles, where they are faster for so many tokens; else null.
inline const Int8Kernels* int8_tiles([[maybe_unused]] const Int8Panels& weight, [[maybe_unused]] Isa which,
                                     [[maybe_unused]] int64_t tokens) {
#if defined(__x86_64__)
  if (which == Isa::amx && weight.codes == Codes::bits8 && tokens >= kFewestOfBytes && tokens <= kFewTiled) {
    return &amx::int8_in_tiles;
  }
#endif
  return nullptr;
}

}  // namespace modulm
