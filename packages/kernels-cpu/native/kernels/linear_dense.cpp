#include "linear_dense.hpp"

#include "linear_float8.hpp"

namespace modulm::MODULM_ISA {
namespace {

void pack_tokens(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, const Activations& to) {
  for (int64_t chunk = 0; chunk < chunks_of(to.inputs); ++chunk) {
    const int64_t input = chunk * kChunk, left = to.inputs - input, count = left < kChunk ? left : kChunk;
    for (int64_t token = begin; token < end; ++token) {
      float* at = const_cast<float*>(to.at(chunk, token));
      widen_row(x, type, token * stride + input, count, at);
      if (count % 2 != 0) at[count] = 0.0f;  // weights come in pairs
    }
  }
}

// Numbers of fewer bits widened a chunk at a time, for many tokens: of 16 registers, 12 sums leave none to widen in.
template <Element element>
struct Widened {
  const DensePanels& weight;
  alignas(64) float values[kChunk * kPanelRows];

  // `count` inputs from `input` on.
  const uint8_t* operator()(int64_t panel, int64_t input, int64_t count) {
    const uint8_t* from = weight.data + panel * weight.panel_bytes() + input * kPanelRows * bytes_of(element);
    for (int64_t pair = 0; pair < (count + 1) / 2; ++pair) {
      for (int row = 0; row < kPanel; row += kLanes) {
        store(values + pair * 2 * kPanel + row, load_weights<element, 0>(from, pair, row));
        store(values + (pair * 2 + 1) * kPanel + row, load_weights<element, 1>(from, pair, row));
      }
    }
    return reinterpret_cast<const uint8_t*>(values);
  }

  const uint8_t* operator()(int64_t panel, int64_t chunk) {
    const int64_t left = weight.inputs - chunk * kChunk;
    return (*this)(panel, chunk * kChunk, left < kChunk ? left : kChunk);
  }
};

template <Element element>
void multiply_stored(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                     int64_t first, int64_t last) {
  if constexpr (element != Element::f32) {
    if (last - first > 2 * kTile) {
      Widened<element> source{weight, {}};
      return multiply_panels<Element::f32>(source, x, out, begin, end, first, last);
    }
  }
  const Stored source{weight.data, weight.panel_bytes(), kChunk * kPanelRows * bytes_of(element)};
  multiply_panels<element>(source, x, out, begin, end, first, last);
}

template <Element element>
void multiply_float8(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                     int64_t first, int64_t last) {
  constexpr float factor = element == Element::e4m3 ? 256.0f : 1.0f;  // see load_float8_of_pair
  if (last - first > 2 * kTile) {
    Widened<element> source{weight, {}};
    return multiply_scaled<Element::f32>(source, weight, factor, x, out, begin, end, first, last);
  }
  const auto stored = [&](int64_t panel, int64_t input, int64_t) {
    return weight.data + panel * weight.panel_bytes() + input * kPanelRows;
  };
  multiply_scaled<element>(stored, weight, factor, x, out, begin, end, first, last);
}

void multiply_any(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                  int64_t first, int64_t last) {
  switch (weight.element) {
    case Element::f32: return multiply_stored<Element::f32>(weight, x, out, begin, end, first, last);
    case Element::f16: return multiply_stored<Element::f16>(weight, x, out, begin, end, first, last);
    case Element::bf16: return multiply_stored<Element::bf16>(weight, x, out, begin, end, first, last);
    case Element::e4m3: return multiply_float8<Element::e4m3>(weight, x, out, begin, end, first, last);
    case Element::e5m2: return multiply_float8<Element::e5m2>(weight, x, out, begin, end, first, last);
  }
}

const TokenPacker kPacker{kTile, kMostTokens, 1, kChunk, pack_tokens};

}  // namespace

extern const DenseKernels dense;
const DenseKernels dense{kPacker, multiply_any};

}  // namespace modulm::MODULM_ISA
