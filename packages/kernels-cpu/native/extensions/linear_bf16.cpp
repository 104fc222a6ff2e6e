// bfloat16 by bfloat16, added up in float32: a word holds two neighbouring inputs, of weights as of activations, and one
// instruction (vdpbf16ps) multiplies both and adds the second, then the first. All else is as with float32. 8-bit floats are
// widened a chunk at a time.
#include "linear_dense_rounded.hpp"
#include "linear_float8_rounded.hpp"

namespace modulm::MODULM_ISA {
namespace {

void multiply(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  const Stored source{weight.data, weight.panel_bytes(), kChunk * kPanelRows * 4};
  multiply_panels<kBf16Pair>(source, x, out, begin, end, first, last);
}

template <Element element>
void multiply_float8(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                     int64_t first, int64_t last) {
  alignas(64) uint8_t words[kChunk * kPanelRows * 4];
  const Widener<element> widen(weight);
  const auto source = [&](int64_t panel, int64_t word, int64_t count) {
    widen(panel, word, (count + 1) / 2 * 2, words);  // tiles take two at once, and panels have them
    return words;
  };
  multiply_scaled<kBf16Pair>(source, with_scales_of_sums(weight), widen.factor(), x, out, begin, end, first, last);
}

void multiply_e4m3_or_e5m2(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin,
                           int64_t end, int64_t first, int64_t last) {
  const auto multiply = weight.element == Element::e4m3 ? multiply_float8<Element::e4m3> : multiply_float8<Element::e5m2>;
  multiply(weight, x, out, begin, end, first, last);
}

const TokenPacker kPacker{kTile, kMostTokens, 2, kInputs, pack_tokens};

}  // namespace

extern const DenseKernels rounded, rounded_float8;
const DenseKernels rounded{kPacker, multiply};
const DenseKernels rounded_float8{kPacker, multiply_e4m3_or_e5m2};

}  // namespace modulm::MODULM_ISA
