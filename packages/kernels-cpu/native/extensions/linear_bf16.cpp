// bfloat16 by bfloat16, added up in float32: a word holds two neighbouring inputs, of weights as of activations, and one
// instruction (vdpbf16ps) multiplies both and adds the second, then the first. All else is as with float32.
#include "linear_dense_tile.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kInputs = 2 * kChunk;  // of a chunk

// Rounds to nearest even; what float32 holds only as a subnormal becomes 0.
void round_row(const float* from, float* to) {
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    store(to + i, (Vec)_mm512_cvtne2ps_pbh(load(from + 2 * i + kLanes), load(from + 2 * i)));
  }
}

void pack_tokens(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, const Activations& to) {
  alignas(64) float wide[kInputs] = {};
  for (int64_t chunk = 0; chunk < chunks_of(to.words()); ++chunk) {
    const int64_t input = chunk * kInputs, left = to.inputs - input, count = left < kInputs ? left : kInputs;
    if (count < kInputs) __builtin_memset(wide, 0, sizeof(wide));
    for (int64_t token = begin; token < end; ++token) {
      widen_row(x, type, token * stride + input, count, wide);
      round_row(wide, const_cast<float*>(to.at(chunk, token)));
    }
  }
}

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  const Stored source{weight.data, weight.panel_bytes(), kChunk * kPanelRows * 4};
  multiply_panels<kBf16Pair>(source, x, out, begin, end, first, last);
}

}  // namespace

extern const DenseKernels rounded;
const DenseKernels rounded{kTile, kMostTokens, 2, pack_tokens, multiply};

}  // namespace modulm::MODULM_ISA
