// 8-bit floats as bfloat16 in tiles, of more than one token; sums leave the tiles where a block of scales ends. How many tokens
// there are changes no result.
#include "linear_float8_lines.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

struct alignas(64) Room {
  WideRoom wide;
  float totals[kMostOfPanel * kPanel];
  float scales[kMostSteps * kPanel];
};

template <Element element>
class Product {
 public:
  Product(const DensePanels& stored, const Activations& x, const Output& out)
      : widen_(stored), weight_(with_scales_of_sums(stored)), x_(x), out_(out), steps_(steps_of(x.inputs)),
        block_(weight_.scales.columns == 1 ? steps_ : weight_.scales.inputs / kStepInputs),
        room_(room_of_thread<Room>()) {}

  // A panel for at most 32 tokens: a step is widened while tiles multiply one before.
  void few(int64_t panel, int64_t first, int64_t last) {
    const auto place = [&](int64_t step) { return room_.wide.weights + step % kRing * kStepBytes; };
    const bool both = last - first > kTokens;
    int64_t ahead = 0;
    for (int64_t step = 0; step < steps_;) {
      const int64_t begin = step, end = std::min(step + block_, steps_);
      for (clear_sums(); step < end; ++step) {
        for (; ahead < steps_ && ahead <= step + kLag; ++ahead) widen(panel, ahead, 1, place(ahead));
        written();
        add_steps(step_of(x_, step, first), 0, place(step), 1, both);
      }
      fill_scales(weight_, panel, begin / block_, widen_.factor(), room_.scales);
      take(room_.scales, last - first, begin == 0, room_.totals);
    }
    put(panel, first, last, room_.totals);
  }

  // A panel for tokens [first, last), at most kMostOfPanel.
  void many(int64_t panel, int64_t first, int64_t last) {
    const int64_t most = steps_at_once(steps_);
    for (int64_t begin = 0; begin < steps_; begin += most) {
      const int64_t end = std::min(begin + most, steps_);
      widen(panel, begin, end - begin, room_.wide.weights);
      written();
      fill(panel, begin, end);
      for (int64_t token = first; token < last; token += kGroup) {
        const int64_t next = std::min(token + kGroup, last), at = most == steps_ ? 0 : (token - first) * kPanel;
        const Results results(out_, panel, token, end == steps_ ? next - token : 0);
        add(panel, begin, end, token, next - token, results, room_.wide.sums + at, room_.totals + at);
      }
      scaled_.finish();
    }
  }

 private:
  void widen(int64_t panel, int64_t step, int64_t count, uint8_t* to) const {
    const int64_t word = step * kWords, words = std::min(count * kWords, x_.words() - word);
    widen_(panel, word, words, to);
    if (words < count * kWords) __builtin_memset(to + words * kWordBytes, 0, size_t((count * kWords - words) * kWordBytes));
  }

  // Scales of the blocks that steps [begin, end) lie in.
  void fill(int64_t panel, int64_t begin, int64_t end) {
    float* to = room_.scales;
    for (int64_t column = begin / block_; column * block_ < end; ++column, to += kPanel) {
      fill_scales(weight_, panel, column, widen_.factor(), to);
    }
  }

  // Steps [begin, end), which are widened, for at most 32 tokens.
  void add(int64_t panel, int64_t begin, int64_t end, int64_t token, int64_t tokens, const Results& results, float* sums,
           float* totals) {
    const int64_t stride = x_.tokens * kWords;
    const bool both = tokens > kTokens;
    for (int64_t step = begin; step < end;) {
      const int64_t column = step / block_, next = std::min((column + 1) * block_, end);
      step == column * block_ ? clear_sums() : load_sums(sums, both);
      scaled_.expect(next - step);
      add_steps(step_of(x_, step, token), stride, room_.wide.weights + (step - begin) * kStepBytes, next - step, both,
                scaled_);
      const float* scales = room_.scales + (column - begin / block_) * kPanel;
      const float* before = column == 0 ? nullptr : totals;
      if (next == steps_) {
        leave(panel, token, tokens, results, sums, scales, before, totals);
      } else if (next == (column + 1) * block_) {
        scaled_.begin(sums, scales, before, kPanel, totals, kPanel, tokens);
      } else {
        store_sums(sums, both);
        written();
      }
      step = next;
    }
  }

  void leave(int64_t panel, int64_t token, int64_t tokens, const Results& results, float* sums, const float* scales,
             const float* before, float* totals) {
    if (weight_.nan_rows == nullptr || weight_.nan_rows[panel] == 0) {
      return scaled_.begin(sums, scales, before, kPanel, results, totals);
    }
    scaled_.begin(sums, scales, before, kPanel, totals, kPanel, tokens);
    scaled_.finish();
    put(panel, token, token + tokens, totals);
  }

  // What tiles hold, the sums of a block, is scaled and added up.
  void take(const float* scales, int64_t tokens, bool is_first, float* totals) {
    float* sums = block_ == steps_ ? totals : room_.wide.sums;
    store_sums(sums, tokens > kTokens);
    written();
    add_scaled(sums, scales, tokens, is_first, totals);
  }

  void put(int64_t panel, int64_t first, int64_t last, float* totals) const {
    mark_nan_rows(weight_, panel, last - first, totals);
    store_panel(totals, panel, first, last, out_);
  }

  const Widener<element> widen_;
  const DensePanels weight_;
  const Activations& x_;
  const Output& out_;
  const int64_t steps_, block_;  // of a block of scales
  Room& room_;
  Scaled scaled_;
};

template <Element element>
void multiply_one(const DensePanels& stored, const Activations& x, const Output& out, int64_t begin, int64_t end) {
  const DensePanels weight = with_scales_of_sums(stored);
  alignas(64) float sums[kPanel], totals[kPanel], scales[kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    const Lines<element> lines(stored, panel);
    for (int64_t word = 0; word < x.words();) {
      const Span span(word, weight.scales.columns, weight.scales.inputs / 2, x, x.words());
      lines.add(word, span.end, x, sums);
      fill_scales(weight, panel, span.column, 1.0f, scales);
      add_scaled(sums, scales, 1, span.column == 0, totals);
      word = span.end;
    }
    mark_nan_rows(weight, panel, 1, totals);
    store_panel(totals, panel, 0, 1, out);
  }
}

template <Element element>
void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  if (first == 0 && last == 1) return multiply_one<element>(weight, x, out, begin, end);
  Product<element> product(weight, x, out);
  const Tiles tiles(shapes_for(last - first));
  for (int64_t panel = begin; panel < end; ++panel) {
    last - first > kGroup ? product.many(panel, first, last) : product.few(panel, first, last);
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
