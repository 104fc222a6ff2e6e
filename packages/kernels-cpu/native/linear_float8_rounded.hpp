// 8-bit floats as bfloat16, which holds them all but the scale of a block: what is multiplied by activations rounded to it.
// Scales that are powers of two, none of them extreme, go into the weights; others belong to sums. Included by kernels only.
#pragma once

#include "linear_float8.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Numbers below the normal ones in bfloat16: first their lower bytes, then their upper ones.
struct Subnormals {
  alignas(16) uint8_t bytes[16];

  constexpr explicit Subnormals(bool is_e4m3) : bytes{} {
    for (int i = 0; i < 8; ++i) {
      const uint16_t bits = to_bf16(is_e4m3 ? from_e4m3(uint8_t(i)) : from_e5m2(uint8_t(i)));
      bytes[i] = uint8_t(bits), bytes[i + 8] = uint8_t(bits >> 8);
    }
  }
};
constexpr Subnormals kE4m3(true), kE5m2(false);

inline bool has_small_exponents(const BlockScales& scales) { return scales.exponents != nullptr && scales.are_small; }

// The weight with what scales are left for sums once it is widened.
inline DensePanels with_scales_of_sums(DensePanels weight) {
  static constexpr float kOne = 1.0f;
  if (has_small_exponents(weight.scales)) {
    weight.scales = BlockScales{};
    weight.scales.numbers = &kOne;
    weight.scales.rows = weight.rows + kPanelRows;
  }
  return weight;
}

// Pairs of 8-bit floats -> pairs of bfloat16, 16 rows at once, by moving bits. What is not finite becomes some number: see
// `nan_rows`.
template <Element element>
class Widener {
 public:
  explicit Widener(const DensePanels& weight) : weight_(weight) {
    const uint8_t* bytes = (element == Element::e4m3 ? kE4m3 : kE5m2).bytes;
    subnormals_ = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }

  // Words [word, word + count) of all rows, from 64 bytes each to 128. What is widened later is asked for.
  void operator()(int64_t panel, int64_t word, int64_t count, uint8_t* to) const {
    const uint8_t* from = weight_.data + panel * weight_.panel_bytes() + word * kPanelRows * 2;
    if (!has_small_exponents(weight_.scales)) {
      return widen<false>(from, count, _mm512_setzero_si512(), _mm512_setzero_si512(), to);
    }
    const int64_t block = weight_.scales.columns == 1 ? weight_.inputs : weight_.scales.inputs / 2;
    for (const int64_t last = word + count; word < last;) {
      const int64_t block_end = (word / block + 1) * block, end = block_end < last ? block_end : last;
      widen<true>(from, end - word, exponents(panel, 0, word / block), exponents(panel, 16, word / block), to);
      from += (end - word) * 64, to += (end - word) * 128, word = end;
    }
  }

 private:
  static constexpr int kFraction = element == Element::e4m3 ? 3 : 2;
  static constexpr int kBias = element == Element::e4m3 ? 7 : 15;

  // What to add to both halves of a word of 16 rows from `lane` on.
  __m512i exponents(int64_t panel, int lane, int64_t column) const {
    const BlockScales& scales = weight_.scales;
    __m512i exponent;
    if (scales.by_row) {
      const uint8_t* at = scales.exponents + (panel * scales.columns + column) * kPanelRows + lane;
      exponent = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    } else {
      exponent = _mm512_set1_epi32(scales.exponents[panel * kPanelRows / scales.rows * scales.columns + column]);
    }
    const __m512i shift = _mm512_slli_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(127)), 7);
    return _mm512_or_si512(_mm512_and_si512(shift, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(shift, 16));
  }

  template <bool kScaled>
  void widen(const uint8_t* from, int64_t words, __m512i first, __m512i second, uint8_t* to) const {
    const __m512i subnormals = subnormals_;
    for (int64_t at = 0; at < words; ++at) {
      __builtin_prefetch(from + 64 * at + kBytesAhead, 0, 2);
      _mm512_store_si512(to + 128 * at, widened<kScaled>(from + 64 * at, subnormals, first));
      _mm512_store_si512(to + 128 * at + 64, widened<kScaled>(from + 64 * at + 32, subnormals, second));
    }
  }

  template <bool kScaled>
  static __m512i widened(const uint8_t* from, __m512i subnormals, __m512i exponent) {
    constexpr int shift = 7 - kFraction;
    const __m512i numbers = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i upper = _mm512_slli_epi16(numbers, 8), twice = _mm512_or_si512(upper, numbers);
    const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(numbers, shift), _mm512_set1_epi16(127 << shift));
    __m512i bits = _mm512_add_epi16(magnitude, _mm512_set1_epi16((127 - kBias) << 7));
    const __mmask64 is_subnormal = _mm512_testn_epi8_mask(twice, _mm512_set1_epi8(127 >> kFraction << kFraction));
    const __m512i index = ternary<(kA & kB) | kC>(twice, _mm512_set1_epi16(0x0707), _mm512_set1_epi16(0x0800));
    bits = _mm512_mask_shuffle_epi8(bits, is_subnormal, subnormals, index);
    if constexpr (kScaled) {
      bits = _mm512_mask_add_epi16(bits, _mm512_test_epi16_mask(bits, bits), bits, exponent);  // 0 stays 0
    }
    return ternary<(kA & kB) | kC>(upper, _mm512_set1_epi16(short(0x8000)), bits);
  }

  static constexpr int kA = 0xf0, kB = 0xcc, kC = 0xaa;  // a function of three bits is what it makes of these
  template <int function>
  static __m512i ternary(__m512i a, __m512i b, __m512i c) {
    return _mm512_ternarylogic_epi64(a, b, c, function);
  }

  const DensePanels& weight_;
  __m512i subnormals_;
};

}  // namespace
}  // namespace modulm::MODULM_ISA
