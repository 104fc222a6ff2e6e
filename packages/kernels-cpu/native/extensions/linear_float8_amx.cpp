// 8-bit floats as bfloat16 in tiles. A span of a panel's words is widened once for all tokens; sums leave the tiles at its
// end. How many tokens there are changes no result.
#include <algorithm>

#include "linear_bf16_tiles.hpp"
#include "linear_float8_rounded.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kGroup = 2 * kTokens;
constexpr int64_t kMostOfPanel = 16 * kGroup;  // tokens for which a panel is widened once
constexpr int64_t kManyWords = 1024;           // widened for many tokens: they stay in the L2 cache, and sums seldom leave
constexpr int64_t kFewWords = 64;              // widened for one group: they stay in the L1 cache

inline void load_sums(const float* from, bool both) {
  _tile_loadd(0, from, kPanel * 4);
  _tile_loadd(1, from + 16, kPanel * 4);
  if (!both) return;
  _tile_loadd(2, from + kTokens * kPanel, kPanel * 4);
  _tile_loadd(3, from + kTokens * kPanel + 16, kPanel * 4);
}

inline void store_sums(float* to, bool both) {
  _tile_stored(0, to, kPanel * 4);
  _tile_stored(1, to + 16, kPanel * 4);
  if (!both) return;
  _tile_stored(2, to + kTokens * kPanel, kPanel * 4);
  _tile_stored(3, to + kTokens * kPanel + 16, kPanel * 4);
}

// Adds the words of a span, widened and filled up with zeros to whole tiles, to the sums of `count` tokens from `token` on,
// at most a group.
void add_span(const uint8_t* weights, const Activations& x, const Span& span, int64_t token, int64_t count, float* sums) {
  const bool both = count > kTokens;
  const auto add = both ? add_both : add_one;
  if (span.begins_block) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    load_sums(sums, both);
  }
  for (int64_t word = span.begin; word < span.end; word += kWords, weights += kStepBytes) {
    add(x.at(word / kChunk, token) + word % kChunk, kTokenBytes, weights);
  }
  store_sums(sums, both);
}

// What a thread works in: too much for small stacks.
struct alignas(64) Room {
  uint8_t words[kManyWords * kWordBytes];
  float sums[kMostOfPanel * kPanel], totals[kMostOfPanel * kPanel];
};

template <Element element>
void multiply(const DensePanels& stored, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  thread_local Room room;
  alignas(64) float scales[kPanel];
  const Widener<element> widen(stored);
  const DensePanels weight = with_scales_of_sums(stored);
  const int64_t columns = weight.scales.columns, block = weight.scales.inputs / 2;
  const int64_t most = last - first > kGroup ? kManyWords : kFewWords;
  const Tiles tiles(shapes_for(last - first));
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t word = 0; word < x.words();) {
      const Span span(word, columns, block, x, most);
      const int64_t count = span.end - word, rest = (kWords - count % kWords) % kWords;
      widen(panel, word, count, room.words);
      __builtin_memset(room.words + count * kWordBytes, 0, size_t(rest * kWordBytes));
      written();
      if (span.ends_block) fill_scales(weight, panel, span.column, 1.0f, scales);
      for (int64_t token = first; token < last; token += kGroup) {
        const int64_t tokens = std::min(last - token, kGroup), at = (token - first) * kPanel;
        // What outlives neither the span nor the block lies where the last group's did, in the L1 cache.
        float* sums = room.sums + (span.begins_block && span.ends_block ? 0 : at);
        float* totals = columns == 1 ? sums : room.totals + at;
        add_span(room.words, x, span, token, tokens, sums);
        if (span.ends_block) add_scaled(sums, scales, tokens, span.column == 0, totals);
        if (span.end < x.words()) continue;
        mark_nan_rows(weight, panel, tokens, totals);
        store_panel(totals, panel, token, token + tokens, out);
      }
      word = span.end;
    }
  }
}

void multiply_e4m3_or_e5m2(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin,
                           int64_t end, int64_t first, int64_t last) {
  const auto with = weight.element == Element::e4m3 ? multiply<Element::e4m3> : multiply<Element::e5m2>;
  with(weight, x, out, begin, end, first, last);
}

}  // namespace

extern const DenseKernels rounded_float8;
const DenseKernels rounded_float8{kTokens, kMostOfPanel, 2, pack_tokens, multiply_e4m3_or_e5m2};

}  // namespace modulm::MODULM_ISA
