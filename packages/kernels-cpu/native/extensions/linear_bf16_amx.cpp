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

// While one lives, numbers too small to be normal count as 0 on this thread, as they do in tiles.
class NoSubnormals {
 public:
  NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~NoSubnormals() { _mm_setcsr(before_); }
  NoSubnormals(const NoSubnormals&) = delete;
  NoSubnormals& operator=(const NoSubnormals&) = delete;

 private:
  const unsigned before_;
};

// A panel for a few tokens, which wait for memory: it is read a seventh faster line by line than in tiles. Numbers are added
// up as tiles do: of each step first inputs of words and second ones apart, word by word, then both sums together.
template <int tokens>
[[gnu::noinline]] void add_lines(const uint8_t* panel, const Activations& x, float* sums) {
  const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
  Vec total[tokens][2];
  for (int t = 0; t < tokens; ++t) total[t][0] = total[t][1] = all(0.0f);
  for (int64_t word = 0, words = x.words(); word < words;) {
    const float* from = step_of(x, word / kWords, 0);
    Vec first[tokens][2], second[tokens][2];
    for (int t = 0; t < tokens; ++t) first[t][0] = first[t][1] = second[t][0] = second[t][1] = all(0.0f);
    const int64_t begin = word, end = word + kWords < words ? word + kWords : words;
    for (; word < end; ++word) {
      const uint8_t* lines = panel + word * kWordBytes;
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __builtin_prefetch(lines + 64 * v + kBytesNear, 0, 2);
        const Vec one = load_bf16_of_pair<0>(lines + 64 * v), other = load_bf16_of_pair<1>(lines + 64 * v);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; ++t) {
          const __m512i pair = _mm512_castps_si512(all(from[t * kWords + word - begin]));
          first[t][v] = fma(one, _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), first[t][v]);
          second[t][v] = fma(other, _mm512_castsi512_ps(_mm512_and_si512(pair, upper)), second[t][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) {
      for (int v = 0; v < 2; ++v) total[t][v] = total[t][v] + (first[t][v] + second[t][v]);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int v = 0; v < 2; ++v) store(sums + t * kPanel + v * kLanes, total[t][v]);
  }
}

constexpr int64_t kMostInLines = 3;

void multiply_few(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                  int64_t tokens) {
  constexpr void (*lines[])(const uint8_t*, const Activations&, float*) = {add_lines<1>, add_lines<2>, add_lines<3>};
  const NoSubnormals none;
  alignas(64) float sums[kMostInLines * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    lines[tokens - 1](weight.data + panel * weight.panel_bytes(), x, sums);
    store_panel(sums, panel, 0, tokens, out);
  }
}

// Adds up one panel for tokens from `token` on.
void add_panel(const uint8_t* panel, const Activations& x, int64_t token, bool both) {
  const int64_t whole = x.words() / kWords, rest = x.words() % kWords, stride = x.tokens * kWords;
  clear_sums();
  add_steps(step_of(x, 0, token), stride, panel, whole, both);
  if (rest > 0) {
    const Padded last(panel + whole * kStepBytes, rest);
    add_steps(step_of(x, whole, token), stride, last.weights, 1, both);
  }
}

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  if (first == 0 && last <= kMostInLines) return multiply_few(weight, x, out, begin, end, last);
  const Tiles tiles(shapes_for(last - first));
  alignas(64) float sums[kGroup * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t token = first; token < last; token += kGroup) {
      const int64_t next = token + kGroup < last ? token + kGroup : last;
      const Results results(out, panel, token, next - token, 1.0f);
      add_panel(weight.data + panel * weight.panel_bytes(), x, token, next - token > kTokens);
      results.store(sums);
    }
  }
}

}  // namespace

const TokenPacker tiled_tokens{kTokens, kMostOfPanel, 2, kStepInputs, pack_tokens};
extern const DenseKernels rounded;
const DenseKernels rounded{tiled_tokens, multiply};

}  // namespace modulm::MODULM_ISA
