// 8-bit floats as bfloat16 in tiles. Some steps of a panel are widened once for all tokens; sums leave the tiles where a
// block of scales ends. How many tokens there are changes no result.
#include "linear_float8_rounded.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kFewSteps = 4;  // widened for one group: they stay in the L1 cache

struct alignas(64) Room {
  WideRoom wide;
  float totals[kMostOfPanel * kPanel];
};

template <Element element>
void multiply(const DensePanels& stored, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  Room& room = room_of_thread<Room>();
  alignas(64) float scales[kPanel];
  const Widener<element> widen(stored);
  const DensePanels weight = with_scales_of_sums(stored);
  const int64_t columns = weight.scales.columns, block = weight.scales.inputs / 2, stride = x.tokens * kWords;
  const int64_t most = (last - first > kGroup ? kMostSteps : kFewSteps) * kWords;
  uint8_t* const words = room.wide.weights;
  const Tiles tiles(shapes_for(last - first));
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t word = 0; word < x.words();) {
      const Span span(word, columns, block, x, most);
      const int64_t count = span.end - word, steps = (count + kWords - 1) / kWords;
      widen(panel, word, count, words);
      __builtin_memset(words + count * kWordBytes, 0, size_t((steps * kWords - count) * kWordBytes));
      written();
      if (span.ends_block) fill_scales(weight, panel, span.column, 1.0f, scales);
      for (int64_t token = first; token < last; token += kGroup) {
        const int64_t tokens = std::min(last - token, kGroup), at = (token - first) * kPanel;
        const bool both = tokens > kTokens;
        // What outlives neither the span nor the block lies where the last group's did, in the L1 cache.
        float* sums = room.wide.sums + (span.begins_block && span.ends_block ? 0 : at);
        float* totals = columns == 1 ? sums : room.totals + at;
        span.begins_block ? clear_sums() : load_sums(sums, both);
        add_steps(step_of(x, word / kWords, token), stride, words, steps, both);
        store_sums(sums, both);
        written();
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
const DenseKernels rounded_float8{tiled_tokens, multiply_e4m3_or_e5m2};

}  // namespace modulm::MODULM_ISA
