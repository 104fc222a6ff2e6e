// Products with plain numbers: float32, float16, bfloat16 and 8-bit floats kept in their own width, widened in
// registers, added up in float32. Where the processor multiplies bfloat16 (`extensions/linear_bf16.cpp`), it does: 8-bit
// floats are bfloat16 too, and their scales belong to sums.
//
// Layout ("panels"): 32 output rows lie interleaved, so that one load gives the same input of neighbouring rows and
// every lane is a row. Each sum runs over the inputs in order, whatever the tile, the thread or the number of tokens:
// a token's result does not depend on its company. AVX2 and AVX-512 give the same bits.
#pragma once

#include <cstdint>
#include <functional>

#include "dispatch.hpp"
#include "elementwise.hpp"
#include "float_types.hpp"

namespace modulm {

inline constexpr int64_t kPanelRows = 32;
inline constexpr int64_t kChunk = 128;  // words per turn: 16 KiB of weights in 32 bits stay in the L1 cache

// How weights are stored. The first three equal `Float`.
enum class Element : int { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3, e5m2 = 4 };

inline constexpr int64_t bytes_of(Element element) {
  return element == Element::f32 ? 4 : element == Element::f16 || element == Element::bf16 ? 2 : 1;
}

inline constexpr int64_t panels_of(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }
inline constexpr int64_t chunks_of(int64_t words) { return (words + kChunk - 1) / kChunk; }

inline constexpr bool in_pairs(Element element) { return element >= Element::bf16; }

// Scales of 8-bit floats: value = scale * number, one scale for each `columns`th part of `inputs` inputs, of one row
// (`by_row`: [panel][column][32]) or of `rows` rows, whole panels ([row / rows][column]). As `exponents` they are a byte
// where float32 has its exponent.
struct BlockScales {
  const float* numbers = nullptr;
  const uint8_t* exponents = nullptr;
  bool by_row = false;
  bool are_small = false;  // exponents, none so far from 1 that a weight times it would leave the range of bfloat16
  int64_t rows = 1, inputs = 1, columns = 1;
};

namespace {

[[maybe_unused]] inline float from_exponent(uint8_t exponent) { return __builtin_bit_cast(float, uint32_t(exponent) << 23); }

// The scale of row `lane` of a panel.
[[maybe_unused]] inline float scale_of(const BlockScales& scales, int64_t panel, int64_t lane, int64_t column) {
  const int64_t at = scales.by_row ? (panel * scales.columns + column) * kPanelRows + lane
                                   : panel * kPanelRows / scales.rows * scales.columns + column;
  if (scales.numbers != nullptr) return scales.numbers[at];
  return from_exponent(scales.exponents[at]);
}

}  // namespace

// Weights [rows, inputs] in panels: [panel][input][32], zeros beyond rows and up to a multiple of 4 inputs. bfloat16 and
// 8-bit floats differ: [panel][input / 2][32][2], because pairs of neighbours widen with one shift and one mask, and
// because they are what the processor multiplies at once where it multiplies bfloat16.
struct DensePanels {
  Element element;
  int64_t rows;
  int64_t inputs;
  const uint8_t* data;
  BlockScales scales;          // 8-bit floats only
  const uint32_t* nan_rows;    // of 8-bit floats: a bit for each row of a panel that has what is not finite; null where none has
  const uint8_t* small_steps = nullptr;  // of 8-bit floats: for each 32 inputs of a panel, whether some are subnormal or 0

  int64_t panel_bytes() const { return (inputs + 3) / 4 * 4 * kPanelRows * bytes_of(element); }
  int64_t small_steps_of_panel() const { return (inputs + 31) / 32; }
};

inline constexpr int64_t kStepNumbers = 32 * kPanelRows;  // that one of `small_steps` is for

// Activations in words of 32 bits: a float32, or two of bfloat16. They are cut into chunks: [chunk][token][kChunk]. So
// the tokens of a tile lie a constant apart, and beside each other. For AMX a chunk has 16 words: see `linear_bf16_tiles.hpp`.
struct Activations {
  const float* packed;
  int64_t tokens;
  int64_t inputs;
  int64_t inputs_per_word = 1;
  float* sums = nullptr;  // [step][token], where words are pairs: what each 32 inputs of a token add up to, if its packer says so

  int64_t words() const { return (inputs + inputs_per_word - 1) / inputs_per_word; }
  const float* at(int64_t chunk, int64_t token) const { return packed + (chunk * tokens + token) * kChunk; }
  static Activations in(void* memory, int64_t tokens, int64_t inputs, int64_t inputs_per_word = 1) {
    float* const packed = static_cast<float*>(memory);
    return {packed, tokens, inputs, inputs_per_word, packed + (inputs + 31) / 32 * 16 * tokens};
  }
  // Inputs [begin, end) alone, where the packer keeps so many together.
  Activations slice(int64_t begin, int64_t end) const {
    return {packed + begin / inputs_per_word * tokens, tokens, end - begin, inputs_per_word, sums + begin / 32 * tokens};
  }
  // More than enough for words of two inputs.
  static int64_t bytes_for(int64_t tokens, int64_t inputs) { return chunks_of(inputs) * tokens * kChunk * 4; }
};

// Results [tokens, rows], tokens `stride` numbers apart.
struct Output {
  void* data;
  Float type;
  int64_t rows;
  int64_t stride;
  const float* added = nullptr;  // [tokens, rows] that they are added to, where a weight can: see `PackedWeight::adds`
  int64_t added_stride = 0;
};

// Puts steps [begin, end) of 32 inputs of 16 rows at `to` as bfloat16, [step][16 words of two inputs][32 rows], of which the
// rows are the first half. Returns what sums of products are to be multiplied by.
using WidenRows = std::function<float(int64_t begin, int64_t end, uint8_t* to)>;

// How kernels want activations to lie.
struct TokenPacker {
  int64_t tile;             // tokens that share one load of the weights
  int64_t most_tokens;      // that one call of a kernel may be given
  int64_t inputs_per_word;  // of `Activations`
  int64_t together;         // inputs of a chunk, which all tokens have before the next one: see `Activations::slice`

  // Fill `packed` (see `Activations`) for tokens [begin, end) of x, whose rows start `stride` numbers apart.
  void (*pack)(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, const Activations& to);

  // Where rows can be widened: fill rows 16 * block .. of the packed `out` with what 16 gates make of 16 ups, for tokens
  // [first, last) of x. Null where there is no such kernel.
  void (*multiply_gated)(const WidenRows& gates, const WidenRows& ups, Activation function, const Activations& x,
                         int64_t first, int64_t last, int64_t block, const Activations& out) = nullptr;
};

// Products of packed activations with panels of 32 rows of a weight.
template <class Weight>
struct PanelKernels {
  const TokenPacker& tokens;

  // Compute panels [begin, end) of rows for tokens [first, last).
  void (*multiply)(const Weight& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                   int64_t first, int64_t last);

  // `WidenRows` of a block of 16 rows; or null.
  float (*widen)(const Weight& weight, int64_t block, int64_t begin, int64_t end, uint8_t* to) = nullptr;
};

using DenseKernels = PanelKernels<DensePanels>;

// From so many tokens on, weights of few bits become bfloat16 for tiles of it: fewer are faster as integers. So the last
// bits of a token's result depend on how many are computed with it.
inline constexpr int64_t kFewestTiled = 12;
inline constexpr int64_t kFewTiled = 16;  // up to so many tokens are multiplied in tiles in other ways than more of them

// `instance(isa, tokens)` is what multiplies so many tokens in tiles, or null; a file in `extensions/` defines it.
#if defined(__x86_64__)
#define MODULM_TILED(Weight, instance)                                             \
  namespace amx { extern const PanelKernels<Weight> instance; }                    \
  inline const PanelKernels<Weight>* instance(Isa which, int64_t tokens) {         \
    return which == Isa::amx && tokens >= kFewestTiled ? &amx::instance : nullptr; \
  }
#else
#define MODULM_TILED(Weight, instance) \
  inline const PanelKernels<Weight>* instance(Isa, int64_t) { return nullptr; }
#endif

MODULM_FAMILY(DenseKernels, dense)

#if defined(__x86_64__)
namespace avx512_bf16 { extern const DenseKernels rounded, rounded_float8; }
namespace amx { extern const DenseKernels rounded, rounded_float8; }
#endif

// Kernels for such weights: unless `exact`, those that round activations to bfloat16, where the processor multiplies it.
inline const DenseKernels& dense_for(Element element, bool exact, Isa which) {
#if defined(__x86_64__)
  const bool is_float8 = element >= Element::e4m3;
  if (!exact && in_pairs(element)) {
    if (which == Isa::avx512_bf16) return is_float8 ? avx512_bf16::rounded_float8 : avx512_bf16::rounded;
    if (which == Isa::amx) return is_float8 ? amx::rounded_float8 : amx::rounded;
  }
#endif
  return dense(which);
}

}  // namespace modulm
