// bfloat16 by bfloat16 in tiles: panels lie as tiles want them.
#include "gated_tiles.hpp"
#include "linear_bf16_lines.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Two neighbours in a word, rounded to nearest even; what float32 holds only as a subnormal becomes 0.
inline __m512bh round_step(const float* from, void* to) {
  const __m512bh words = _mm512_cvtne2ps_pbh(load(from + kLanes), load(from));
  _mm512_store_si512(to, (__m512i)words);
  return words;
}

inline float sum_of(__m512bh words) {
  return _mm512_reduce_add_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), words, (__m512bh)_mm512_set1_epi16(0x3f80)));
}

void pack_tokens(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, const Activations& to) {
  alignas(64) float wide[kStepInputs] = {};
  for (int64_t step = 0; step < steps_of(to.inputs); ++step) {
    const int64_t input = step * kStepInputs, left = to.inputs - input, count = left < kStepInputs ? left : kStepInputs;
    if (count < kStepInputs) __builtin_memset(wide, 0, sizeof(wide));
    for (int64_t token = begin; token < end; ++token) {
      const int64_t at = token * stride + input;
      const bool is_ready = type == Float::f32 && count == kStepInputs;
      if (!is_ready) widen_row(x, type, at, count, wide);
      const float* from = is_ready ? static_cast<const float*>(x) + at : wide;
      const __m512bh words = round_step(from, const_cast<float*>(step_of(to, step, token)));
      if (to.tokens <= kTokens) to.sums[step * to.tokens + token] = sum_of(words);
    }
  }
}

// The last step of a panel where it is not whole, among zeros.
struct Padded {
  alignas(64) uint8_t weights[kStepBytes];

  Padded(const uint8_t* from, int64_t words) : weights{} {
    __builtin_memcpy(weights, from, size_t(words * kWordBytes));
    written();
  }
};

struct Lines {
  const uint8_t* panel;

  void load(int64_t word, Vec (&first)[2], Vec (&second)[2]) const {
    const uint8_t* at = panel + word * kWordBytes;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v, at += 64) {
      __builtin_prefetch(at + kBytesNear, 0, 2);
      first[v] = load_bf16_of_pair<0>(at), second[v] = load_bf16_of_pair<1>(at);
    }
  }
};

template <int tokens>
void multiply_few(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end) {
  alignas(64) float sums[tokens * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    add_lines<tokens>(Lines{weight.data + panel * weight.panel_bytes()}, 0, x.words(), x, sums);
    store_panel(sums, panel, 0, tokens, out);
  }
}

// A step is asked for before its tiles are loaded; an even number of KiB away its lines would cross a page.
constexpr int64_t kTilesAhead = 3 << 10;

// Adds up one panel for tokens from `token` on.
template <int64_t ahead>
void add_panel(const uint8_t* panel, const Activations& x, int64_t token, bool both) {
  const int64_t whole = x.words() / kWords, rest = x.words() % kWords, stride = x.tokens * kWords;
  clear_sums();
  add_steps<ahead>(step_of(x, 0, token), stride, panel, whole, both);
  if (rest > 0) {
    const Padded last(panel + whole * kStepBytes, rest);
    add_steps(step_of(x, whole, token), stride, last.weights, 1, both);
  }
}

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  if (first == 0 && last <= kMostInLines) {
    return with_count(last, [&]<int tokens>() { multiply_few<tokens>(weight, x, out, begin, end); });
  }
  const Tiles tiles(shapes_for(last - first));
  alignas(64) float sums[kGroup * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t token = first; token < last; token += kGroup) {
      const int64_t next = token + kGroup < last ? token + kGroup : last;
      const Results results(out, panel, token, next - token);
      const auto add = token == first ? add_panel<kTilesAhead> : add_panel<0>;  // other tokens find it in a cache
      add(weight.data + panel * weight.panel_bytes(), x, token, next - token > kTokens);
      results.store(sums);
    }
  }
}

// They are bfloat16 already; only their lines come from two places.
float widen(const DensePanels& weight, int64_t block, int64_t begin, int64_t end, uint8_t* to) {
  const uint8_t* panel = weight.data + block / 2 * weight.panel_bytes() + block % 2 * 64;
  const int64_t words = (weight.inputs + 1) / 2;
  for (int64_t word = begin * kWords; word < end * kWords; ++word, to += kWordBytes) {
    const __m512i row = word < words ? _mm512_loadu_si512(panel + word * kWordBytes) : _mm512_setzero_si512();
    _mm512_store_si512(to, row);
  }
  return 1.0f;
}

}  // namespace

const TokenPacker tiled_tokens{kTokens, kMostOfPanel, 2, kStepInputs, pack_tokens, multiply_gated};
extern const DenseKernels rounded;
const DenseKernels rounded{tiled_tokens, multiply, widen};

}  // namespace modulm::MODULM_ISA
