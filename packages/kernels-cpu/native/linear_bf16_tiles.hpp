// bfloat16 by bfloat16 in tiles: 16 words of two inputs at once, by a panel's 32 rows. Included by kernels of the namespace
// `amx` only.
#pragma once

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

// Shapes for so many tokens: more than 16 take two tiles.
inline TileShapes shapes_for(int64_t tokens) {
  TileShapes shapes;
  for (int tile = 0; tile < 6; ++tile) shapes.set(tile, tokens < kTokens ? int(tokens) : kTokens, 64);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, kWords, 64);
  return shapes;
}

}  // namespace
}  // namespace modulm::MODULM_ISA
