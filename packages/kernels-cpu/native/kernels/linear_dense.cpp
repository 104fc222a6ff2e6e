#include "linear_dense.hpp"

#include "linear_dense_tile.hpp"

namespace modulm::MODULM_ISA {
namespace {

void widen_row(const void* x, Float type, int64_t at, int64_t count, float* to) {
  if (type == Float::f32) {
    __builtin_memcpy(to, static_cast<const float*>(x) + at, size_t(count) * 4);
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(x) + at;
  int64_t i = 0;
  if (type == Float::f16) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(reinterpret_cast<const Half*>(from) + i));
    for (; i < count; ++i) to[i] = from_f16(from[i]);
  } else {
    for (; i < count; ++i) to[i] = from_bf16(from[i]);
  }
}

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

// Weights as they lie in memory.
struct Stored {
  const uint8_t* data;
  int64_t panel_bytes;
  int64_t chunk_bytes;

  const uint8_t* operator()(int64_t panel, int64_t chunk) const {
    return data + panel * panel_bytes + chunk * chunk_bytes;
  }
};

// 8-bit floats as float16 bits. e4m3 has the exponent's bias at 7 instead of 15, so its value comes out 2^8 too small.
template <Element element>
inline void as_f16(const uint8_t* from, Half* to) {
  for (int i = 0; i < kPanel; ++i) {
    if constexpr (element == Element::e5m2) {
      to[i].bits = uint16_t(from[i] << 8);
    } else {
      const uint16_t magnitude = from[i] & 0x7f, sign = uint16_t((from[i] & 0x80) << 8);
      to[i].bits = uint16_t(sign | (magnitude == 0x7f ? 0x7e00 : magnitude << 7));
    }
  }
}

// 8-bit floats, widened and scaled a chunk at a time.
template <Element element>
struct Scaled {
  const DensePanels& weight;
  alignas(64) float values[kChunk * kPanelRows];

  const uint8_t* operator()(int64_t panel, int64_t chunk) {
    const uint8_t* from = weight.data + panel * weight.panel_bytes() + chunk * kChunk * kPanelRows;
    const int64_t input = chunk * kChunk, end = input + kChunk < weight.inputs ? input + kChunk : weight.inputs;
    alignas(64) float scales[kPanel];
    for (int64_t i = input, block_end = i; i < end; ++i) {
      if (i == block_end) {
        fill_scales(panel, i / weight.block_inputs, scales);
        block_end = (i / weight.block_inputs + 1) * weight.block_inputs;
        block_end = block_end < end ? block_end : end;
      }
      widen_input(from + (i - input) * kPanelRows, scales, values + (i - input) * kPanelRows);
    }
    if (end % 2 != 0) __builtin_memset(values + (end - input) * kPanelRows, 0, kPanelRows * 4);
    return reinterpret_cast<const uint8_t*>(values);
  }

  void fill_scales(int64_t panel, int64_t column, float* scales) const {
    const int64_t columns = (weight.inputs + weight.block_inputs - 1) / weight.block_inputs;
    for (int64_t r = 0; r < kPanelRows; ++r) {
      int64_t row = panel * kPanelRows + r;
      row = row < weight.rows ? row : weight.rows - 1;
      scales[r] = weight.scales[row / weight.block_rows * columns + column];
    }
  }

  static void widen_input(const uint8_t* from, const float* scales, float* to) {
    alignas(64) Half halves[kPanel];
    as_f16<element>(from, halves);
    for (int v = 0; v < kPanel; v += kLanes) {
      Vec value = load(halves + v);
      if constexpr (element == Element::e4m3) value = value * all(256.0f);
      store(to + v, value * load(scales + v));
    }
  }
};

template <Element element>
void multiply_stored(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                     int64_t first, int64_t last) {
  Stored source{weight.data, weight.panel_bytes(), kChunk * kPanelRows * bytes_of(element)};
  multiply_panels<element>(source, x, out, begin, end, first, last);
}

template <Element element>
void multiply_scaled(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                     int64_t first, int64_t last) {
  Scaled<element> source{weight, {}};
  multiply_panels<Element::f32>(source, x, out, begin, end, first, last);
}

void multiply_any(const DensePanels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
                  int64_t first, int64_t last) {
  switch (weight.element) {
    case Element::f32: return multiply_stored<Element::f32>(weight, x, out, begin, end, first, last);
    case Element::f16: return multiply_stored<Element::f16>(weight, x, out, begin, end, first, last);
    case Element::bf16: return multiply_stored<Element::bf16>(weight, x, out, begin, end, first, last);
    case Element::e4m3: return multiply_scaled<Element::e4m3>(weight, x, out, begin, end, first, last);
    case Element::e5m2: return multiply_scaled<Element::e5m2>(weight, x, out, begin, end, first, last);
  }
}

}  // namespace

extern const DenseKernels dense;
const DenseKernels dense{kTile, kMostTokens, pack_tokens, multiply_any};

}  // namespace modulm::MODULM_ISA
