// bfloat16 by bfloat16 in tiles, added up in float32: 16 words of two inputs at once, for 32 tokens by a panel's 32 rows.
// Panels and activations lie as tiles want them. How many tokens there are changes no result.
#include "linear_dense_rounded.hpp"
#include "tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTokens = 16;  // of a tile
constexpr int kWords = 16;   // of a tile
constexpr int64_t kWordBytes = kPanel * 4;          // of a panel
constexpr int64_t kTokenBytes = kChunk * 4;         // from one token's words to the next one's
constexpr int64_t kStepBytes = kWords * kWordBytes;  // of a panel, for a tile of words

// Adds 16 words of 32 tokens by 32 rows to tiles 0 to 3: tokens 0 to 15 by rows 0 to 15, then 16 to 31, the others likewise.
inline void add_both(const float* x, int64_t x_stride, const uint8_t* weights) {
  _tile_loadd(4, x, x_stride);
  _tile_loadd(6, weights, kWordBytes);
  _tile_loadd(7, weights + 64, kWordBytes);
  _tile_loadd(5, reinterpret_cast<const uint8_t*>(x) + kTokens * x_stride, x_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// The same for 16 tokens.
inline void add_one(const float* x, int64_t x_stride, const uint8_t* weights) {
  _tile_loadd(4, x, x_stride);
  _tile_loadd(6, weights, kWordBytes);
  _tile_loadd(7, weights + 64, kWordBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
}

// Words that fill no tile, among zeros.
struct Padded {
  alignas(64) float x[2 * kTokens * kWords];
  alignas(64) uint8_t weights[kStepBytes];

  Padded(const float* from, int64_t tokens, const uint8_t* panel, int64_t words) : x{}, weights{} {
    for (int64_t token = 0; token < tokens; ++token) {
      __builtin_memcpy(x + token * kWords, from + token * kChunk, size_t(words) * 4);
    }
    __builtin_memcpy(weights, panel, size_t(words * kWordBytes));
    written();
  }
};

// Sums of one panel for `count` tokens from `token` on, at most 32: [token][32].
void multiply_panel(const uint8_t* panel, const Activations& x, int64_t token, int64_t count, float* sums) {
  const bool both = count > kTokens;
  const auto add = both ? add_both : add_one;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t chunk = 0; chunk < chunks_of(x.words()); ++chunk) {
    const int64_t left = x.words() - chunk * kChunk, words = left < kChunk ? left : kChunk;
    const float* from = x.at(chunk, token);
    const uint8_t* weights = panel + chunk * kChunk * kWordBytes;
    int64_t word = 0;
    for (; word + kWords <= words; word += kWords, weights += kStepBytes) {
      if (!both && count >= kFewestToFetch) {
        for (int64_t at = 0; at < kStepBytes; at += 64) __builtin_prefetch(weights + kBytesAhead + at, 0, 2);
      }
      add(from + word, kTokenBytes, weights);
    }
    if (word < words) {
      const Padded rest(from + word, count, weights, words - word);
      add(rest.x, kWords * 4, rest.weights);
    }
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
  if (both) {
    _tile_stored(2, sums + kTokens * kPanel, kPanel * 4);
    _tile_stored(3, sums + kTokens * kPanel + 16, kPanel * 4);
  }
}

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  const int tokens = last - first < kTokens ? int(last - first) : kTokens;
  TileShapes shapes;
  for (int tile = 0; tile < 6; ++tile) shapes.set(tile, tokens, 64);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, kWords, 64);
  const Tiles tiles(shapes);
  alignas(64) float sums[2 * kTokens * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t token = first; token < last; token += 2 * kTokens) {
      const int64_t next = token + 2 * kTokens < last ? token + 2 * kTokens : last;
      multiply_panel(weight.data + panel * weight.panel_bytes(), x, token, next - token, sums);
      store_panel(sums, panel, token, next, out);
    }
  }
}

}  // namespace

extern const DenseKernels rounded;
const DenseKernels rounded{kTokens, 16 * kTokens, 2, pack_tokens, multiply};

}  // namespace modulm::MODULM_ISA
