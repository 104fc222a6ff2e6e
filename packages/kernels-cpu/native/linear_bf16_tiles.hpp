// bfloat16 by bfloat16 in tiles, added up in float32: a step is 16 words of two inputs, of up to 32 tokens by a panel's 32
// rows. Sums run over the steps in order, so that how many tokens there are changes no result. Included by kernels of the
// namespace `amx` only.
//
// Activations lie in steps too: [step][token][16 words], zeros beyond the last input, so that a tile is 1 KiB in a row.
#pragma once

#include "linear_dense_tile.hpp"
#include "tiles.hpp"

namespace modulm::MODULM_ISA {

extern const TokenPacker tiled_tokens;

namespace {

constexpr int kTokens = 16;  // of a tile
constexpr int kWords = 16;   // of a tile
constexpr int64_t kGroup = 2 * kTokens;
constexpr int64_t kMostOfPanel = 16 * kGroup;        // tokens for which a panel is widened once
constexpr int64_t kStepInputs = 2 * kWords;
constexpr int64_t kWordBytes = kPanel * 4;           // of a panel
constexpr int64_t kStepBytes = kWords * kWordBytes;  // of a panel

inline int64_t steps_of(int64_t inputs) { return (inputs + kStepInputs - 1) / kStepInputs; }

inline const float* step_of(const Activations& x, int64_t step, int64_t token) {
  return x.packed + (step * x.tokens + token) * kWords;
}

// Shapes for so many tokens: more than 16 take two tiles.
inline TileShapes shapes_for(int64_t tokens) {
  TileShapes shapes;
  for (int tile = 0; tile < 6; ++tile) shapes.set(tile, tokens < kTokens ? int(tokens) : kTokens, 64);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, kWords, 64);
  return shapes;
}

// Tiles 0 to 3 hold sums: tokens 0 to 15 by rows 0 to 15, then by rows 16 to 31; tokens 16 to 31 likewise, where there are
// `both`.
inline void load_sums(const float* from, bool both) {
  _tile_loadd(0, from, kPanel * 4);
  _tile_loadd(1, from + 16, kPanel * 4);
  if (!both) return;
  _tile_loadd(2, from + kTokens * kPanel, kPanel * 4);
  _tile_loadd(3, from + kTokens * kPanel + 16, kPanel * 4);
}

inline void store_sums(float* to, bool both, int64_t stride = kPanel) {
  _tile_stored(0, to, stride * 4);
  _tile_stored(1, to + 16, stride * 4);
  if (!both) return;
  _tile_stored(2, to + kTokens * stride, stride * 4);
  _tile_stored(3, to + kTokens * stride + 16, stride * 4);
}

// Where the sums of a panel go for `count` tokens, at most 32, from `token` on: into the results where these are float32
// and hold the whole panel, which are asked for, as they are seldom in a near cache; else into a buffer.
class Results {
 public:
  Results(const Output& out, int64_t panel, int64_t token, int64_t count)
      : out_(out), panel_(panel), token_(token), count_(count) {
    if (out.type != Float::f32 || (panel + 1) * kPanelRows > out.rows) return;
    to_ = static_cast<float*>(out.data) + token * out.stride + panel * kPanelRows;
    for (int64_t t = 0; out.added == nullptr && t < count; ++t) {
      __builtin_prefetch(to_ + t * out.stride, 1);
      __builtin_prefetch(to_ + t * out.stride + 16, 1);
    }
  }

  // Take what tiles hold; `buffer` is for 32 tokens.
  void store(float* buffer) const {
    if (to_ != nullptr && count_ % kTokens == 0) return store_sums(to_, count_ > kTokens, out_.stride);
    store_sums(buffer, count_ > kTokens);
    written();
    put(buffer);
  }

  // Take [count][32] numbers.
  void put(const float* sums) const { store_panel(sums, panel_, token_, token_ + count_, out_); }

  float* in_place() const { return to_; }  // or null
  const float* added() const {             // or null
    return out_.added == nullptr ? nullptr : out_.added + token_ * out_.added_stride + panel_ * kPanelRows;
  }
  int64_t added_stride() const { return out_.added_stride; }
  int64_t stride() const { return out_.stride; }
  int64_t count() const { return count_; }

 private:
  const Output& out_;
  const int64_t panel_, token_, count_;
  float* to_ = nullptr;
};

// Adds a step of the tokens from `x` on, by weights [word][32 rows][2 inputs]. Where weights are at hand, tokens stream: they
// leave the L1 cache to the weights, which those that follow are multiplied with. Where weights come from memory it is the
// other way round: they are asked for `ahead` bytes before, line by line.
template <bool both, int64_t ahead>
inline void add_step(const float* x, const uint8_t* weights) {
  if constexpr (ahead > 0) {
#pragma GCC unroll 32
    for (int64_t at = 0; at < kStepBytes; at += 64) __builtin_prefetch(weights + ahead + at, 0, 2);
    _tile_loadd(4, x, kWords * 4);
    if constexpr (both) _tile_loadd(5, x + kTokens * kWords, kWords * 4);
  } else {
    _tile_stream_loadd(4, x, kWords * 4);
    if constexpr (both) _tile_stream_loadd(5, x + kTokens * kWords, kWords * 4);
  }
  _tile_loadd(6, weights, kWordBytes);
  _tile_loadd(7, weights + 64, kWordBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (!both) return;
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// What is done beside tiles, a part after each step.
struct Nothing {
  void expect(int64_t) const {}
  void operator()() const {}
};

// The same for steps that follow one another, the activations' `stride` words apart.
template <bool both, int64_t ahead, class Beside>
inline void add_steps(const float* x, int64_t stride, const uint8_t* weights, int64_t steps, Beside& beside) {
  for (; steps > 0; --steps, x += stride, weights += kStepBytes) add_step<both, ahead>(x, weights), beside();
}

template <int64_t ahead = 0, class Beside = const Nothing>
inline void add_steps(const float* x, int64_t stride, const uint8_t* weights, int64_t steps, bool both,
                      Beside& beside = Nothing()) {
  both ? add_steps<true, ahead>(x, stride, weights, steps, beside) : add_steps<false, ahead>(x, stride, weights, steps, beside);
}

}  // namespace
}  // namespace modulm::MODULM_ISA
