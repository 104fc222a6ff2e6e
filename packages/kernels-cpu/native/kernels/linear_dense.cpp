#include "linear_dense.hpp"

#include "linear_dense_tile.hpp"

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

// 16-bit numbers widened a chunk at a time, for many tokens: of 16 registers, 12 sums leave none to widen in.
template <Element element>
struct Widened {
  const DensePanels& weight;
  alignas(64) float values[kChunk * kPanelRows];

  const uint8_t* operator()(int64_t panel, int64_t chunk) {
    const uint8_t* from = weight.data + panel * weight.panel_bytes() + chunk * kChunk * kPanelRows * 2;
    const int64_t left = weight.inputs - chunk * kChunk, pairs = left < kChunk ? (left + 1) / 2 : kChunk / 2;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int row = 0; row < kPanel; row += kLanes) {
        store(values + pair * 2 * kPanel + row, load_weights<element, 0>(from, pair, row));
        store(values + (pair * 2 + 1) * kPanel + row, load_weights<element, 1>(from, pair, row));
      }
    }
    return reinterpret_cast<const uint8_t*>(values);
  }
};

// 8-bit floats times `scales`, for the 32 rows of one input, by way of float16. The exponent of e4m3 is biased
// by 7 instead of 15, so scales must make up for 2^8; its only numbers with all of exponent and fraction set are NaN.
template <Element element>
inline void widen_input(const uint8_t* from, const float* scales, float* to) {
#if defined(__AVX512F__)
  const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  __m512i bits = _mm512_slli_epi16(bytes, 8);
  if constexpr (element == Element::e4m3) {
    const __m512i magnitude = _mm512_and_si512(bytes, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi16(short(0x8000)));
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
    bits = _mm512_or_si512(sign, _mm512_slli_epi16(magnitude, 7));
    bits = _mm512_mask_mov_epi16(bits, is_nan, _mm512_set1_epi16(0x7e00));
  }
  store(to, _mm512_cvtph_ps(_mm512_castsi512_si256(bits)) * load(scales));
  store(to + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)) * load(scales + 16));
#elif defined(__AVX2__)
  for (int row = 0; row < kPanel; row += 16) {
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row)));
    __m256i bits = _mm256_slli_epi16(bytes, 8);
    if constexpr (element == Element::e4m3) {
      const __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
      const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi16(short(0x8000)));
      const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
      bits = _mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7));
      bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    }
    store(to + row, _mm256_cvtph_ps(_mm256_castsi256_si128(bits)) * load(scales + row));
    store(to + row + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)) * load(scales + row + 8));
  }
#else
  for (int row = 0; row < kPanel; ++row) {
    const unsigned magnitude = from[row] & 0x7fu, sign = (from[row] & 0x80u) << 8;
    const unsigned narrow_bits = magnitude == 0x7fu ? 0x7e00u : magnitude << 7;
    to[row] = from_f16(uint16_t(element == Element::e5m2 ? from[row] << 8 : sign | narrow_bits)) * scales[row];
  }
#endif
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
      widen_input<element>(from + (i - input) * kPanelRows, scales, values + (i - input) * kPanelRows);
    }
    if (end % 2 != 0) __builtin_memset(values + (end - input) * kPanelRows, 0, kPanelRows * 4);
    return reinterpret_cast<const uint8_t*>(values);
  }

  void fill_scales(int64_t panel, int64_t column, float* scales) const {
    constexpr float correction = element == Element::e4m3 ? 256.0f : 1.0f;  // see widen_input
    const int64_t columns = (weight.inputs + weight.block_inputs - 1) / weight.block_inputs;
    for (int64_t r = 0; r < kPanelRows; ++r) {
      int64_t row = panel * kPanelRows + r;
      row = row < weight.rows ? row : weight.rows - 1;
      scales[r] = weight.scales[row / weight.block_rows * columns + column] * correction;
    }
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
const DenseKernels dense{kTile, kMostTokens, 1, pack_tokens, multiply_any};

}  // namespace modulm::MODULM_ISA
