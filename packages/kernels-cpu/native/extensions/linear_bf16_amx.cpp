// bfloat16 by bfloat16 in tiles: panels lie as tiles want them.
#include "linear_bf16_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Two neighbours in a word, rounded to nearest even; what float32 holds only as a subnormal becomes 0.
inline void round_step(const float* from, void* to) {
  _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(load(from + kLanes), load(from)));
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
      round_step(is_ready ? static_cast<const float*>(x) + at : wide, const_cast<float*>(step_of(to, step, token)));
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

inline void fetch_step(const uint8_t* weights) {
  for (int64_t at = 0; at < kStepBytes; at += 64) __builtin_prefetch(weights + kBytesAhead + at, 0, 2);
}

// Adds up one panel for tokens from `token` on.
void add_panel(const uint8_t* panel, const Activations& x, int64_t token, bool both, bool fetches) {
  const int64_t whole = x.words() / kWords, rest = x.words() % kWords, stride = x.tokens * kWords;
  clear_sums();
  if (fetches) {
    for (int64_t step = 0; step < whole; ++step) {
      fetch_step(panel + step * kStepBytes);
      add_steps(step_of(x, step, token), stride, panel + step * kStepBytes, 1, both);
    }
  } else {
    add_steps(step_of(x, 0, token), stride, panel, whole, both);
  }
  if (rest > 0) {
    const Padded last(panel + whole * kStepBytes, rest);
    add_steps(step_of(x, whole, token), stride, last.weights, 1, both);
  }
}

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  const Tiles tiles(shapes_for(last - first));
  const bool fetches = last - first >= kFewestToFetch && last - first <= kGroup;
  alignas(64) float sums[kGroup * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t token = first; token < last; token += kGroup) {
      const int64_t next = token + kGroup < last ? token + kGroup : last;
      const Results results(out, panel, token, next - token, 1.0f);
      add_panel(weight.data + panel * weight.panel_bytes(), x, token, next - token > kTokens, fetches);
      results.store(sums);
    }
  }
}

}  // namespace

const TokenPacker tiled_tokens{kTokens, kMostOfPanel, 2, pack_tokens};
extern const DenseKernels rounded;
const DenseKernels rounded{tiled_tokens, multiply};

}  // namespace modulm::MODULM_ISA
