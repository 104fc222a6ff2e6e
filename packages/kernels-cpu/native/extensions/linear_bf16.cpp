// bfloat16 by bfloat16, added up in float32: a word holds two neighbouring inputs, of weights as of activations, and one
// instruction (vdpbf16ps) multiplies both and adds the second, then the first. All else is as with float32.
#include "linear_dense_rounded.hpp"

namespace modulm::MODULM_ISA {
namespace {

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  const Stored source{weight.data, weight.panel_bytes(), kChunk * kPanelRows * 4};
  multiply_panels<kBf16Pair>(source, x, out, begin, end, first, last);
}

}  // namespace

extern const DenseKernels rounded;
const DenseKernels rounded{kTile, kMostTokens, 2, pack_tokens, multiply};

}  // namespace modulm::MODULM_ISA
