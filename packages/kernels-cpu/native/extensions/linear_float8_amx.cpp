// 8-bit floats as bfloat16 in tiles. Some steps of a panel are widened once for all tokens; sums leave the tiles where a
// block of scales ends. How many tokens there are changes no result.
#include "linear_bf16_lines.hpp"
#include "linear_float8_rounded.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kFewSteps = 4;  // widened for one group: they stay in the L1 cache

struct alignas(64) Room {
  WideRoom wide;
  float totals[kMostOfPanel * kPanel];
};

// For one token, line by line: to widen for more costs more than it saves. Numbers are `kFactor` times too small; so are
// sums, until exponents of scales have been added.
template <Element element>
class Lines {
 public:
  Lines(const DensePanels& weight, int64_t panel)
      : weight_(weight), panel_(panel), data_(weight.data + panel * weight.panel_bytes()),
        has_exponents_(has_small_exponents(weight.scales)),
        block_(weight.scales.columns == 1 ? weight.inputs : weight.scales.inputs / 2) {}

  void load(int64_t word, Vec (&first)[2], Vec (&second)[2]) const {
    const uint8_t* at = data_ + word * (kPanel * 2);
    __builtin_prefetch(at + kBytesNear, 0, 2);
    const __m512i pairs = _mm512_loadu_si512(at);
    widen(_mm512_slli_epi16(pairs, 8), first), widen(pairs, second);
  }

  void scale(Vec (&sums)[2], int64_t word) const {
    if (!has_exponents_) {
      sums[0] = sums[0] * all(kFactor), sums[1] = sums[1] * all(kFactor);
      return;
    }
    alignas(64) float scales[kPanel];
    fill_scales(weight_, panel_, word / block_, kFactor, scales);
    sums[0] = sums[0] * MODULM_ISA::load(scales), sums[1] = sums[1] * MODULM_ISA::load(scales + kLanes);
  }

 private:
  // The upper bytes, as what their bits mean in float16; see `load_float8_of_pair`.
  static void widen(__m512i bytes, Vec (&to)[2]) {
    const __m512i mask = _mm512_set1_epi16(short(element == Element::e4m3 ? 0xbf80 : 0xff00));
    const __m512i bits = _mm512_and_si512(element == Element::e4m3 ? _mm512_srai_epi16(bytes, 1) : bytes, mask);
    to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
  }

  static constexpr float kFactor = element == Element::e4m3 ? 0x1p8f : 1.0f;

  const DensePanels& weight_;
  const int64_t panel_;
  const uint8_t* const data_;
  const bool has_exponents_;
  const int64_t block_;  // words that have one exponent
};

template <Element element>
void multiply_one(const DensePanels& stored, const Activations& x, const Output& out, int64_t begin, int64_t end) {
  const DensePanels weight = with_scales_of_sums(stored);
  alignas(64) float sums[kPanel], totals[kPanel], scales[kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    const Lines<element> lines(stored, panel);
    for (int64_t word = 0; word < x.words();) {
      const Span span(word, weight.scales.columns, weight.scales.inputs / 2, x, x.words());
      add_lines<1>(lines, word, span.end, x, sums);
      fill_scales(weight, panel, span.column, 1.0f, scales);
      add_scaled(sums, scales, 1, span.column == 0, totals);
      word = span.end;
    }
    mark_nan_rows(weight, panel, 1, totals);
    store_panel(totals, panel, 0, 1, out);
  }
}

template <Element element>
void multiply(const DensePanels& stored, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  if (first == 0 && last == 1) return multiply_one<element>(stored, x, out, begin, end);
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
