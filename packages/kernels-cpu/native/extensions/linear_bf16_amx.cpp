// bfloat16 by bfloat16 in tiles, added up in float32: 16 words of two inputs at once, for 32 tokens by a panel's 32 rows.
// Panels and activations lie as tiles want them. How many tokens there are changes no result.
#include "linear_bf16_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

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
  const Tiles tiles(shapes_for(last - first));
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
