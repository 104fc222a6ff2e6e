// 8-bit floats as bfloat16, which holds them all but the scale of a block: what is multiplied by activations rounded to it.
// Scales that are powers of two, none of them extreme, go into the weights; others belong to sums. Included by kernels only.
#pragma once

#include "linear_float8.hpp"

namespace modulm::MODULM_ISA {
namespace {

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

// Bits of an 8-bit float as low bits of 16, and of bfloat16. As a factor they are `factor` times too small: so the upper bits
// of the exponent are the same for all but those that are subnormal or 0, which a table has.
template <Element element>
struct Bits {
  static constexpr bool kIsE4m3 = element == Element::e4m3;
  static constexpr int kFraction = kIsE4m3 ? 3 : 2, kShift = 7 - kFraction;
  static constexpr short kExponent = 127 >> kFraction << kFraction;    // in the 8-bit float
  static constexpr short kKept = short(0x8000 | 127 << kShift);        // in bfloat16, after a shift
  static constexpr short kUpper = kIsE4m3 ? 0x3800 : 0x3000, kBias = kIsE4m3 ? (127 - 7) << 7 : (127 - 15) << 7;
  static constexpr float kFactor = kIsE4m3 ? 0x1p8f : 0x1p16f;

  alignas(64) uint16_t small[32] = {};    // by fraction
  alignas(64) uint16_t changes[32] = {};  // what makes these of the shifted bits of them as a factor

  constexpr Bits() {
    for (int i = 0; i < 1 << kFraction; ++i) {
      const float value = kIsE4m3 ? from_e4m3(uint8_t(i)) : from_e5m2(uint8_t(i));
      small[i] = to_bf16(value);
      changes[i] = uint16_t(to_bf16(value / kFactor) ^ i << kShift);
    }
  }
};
template <Element element>
constexpr Bits<element> kBits;

// Pairs of 8-bit floats -> pairs of bfloat16, 16 rows at once. What is not finite becomes some number: see `nan_rows`.
template <Element element>
class Widener {
 public:
  // Exponents of scales go into the weights if they are small.
  explicit Widener(const DensePanels& weight)
      : weight_(weight), is_scaled_(has_small_exponents(weight.scales)),
        block_(weight.scales.columns == 1 ? weight.inputs : weight.scales.inputs / 2) {}

  // What the numbers are too small by.
  float factor() const { return is_scaled_ ? 1.0f : Bits::kFactor; }

  // Words [word, word + count) of all rows, from 64 bytes each to 128; `word` begins a step of 16. What is widened later is
  // asked for.
  void operator()(int64_t panel, int64_t word, int64_t count, uint8_t* to) const {
    const uint8_t* from = weight_.data + panel * weight_.panel_bytes() + word * kPanelRows * 2;
    const uint8_t* are_small = weight_.small_steps + panel * weight_.small_steps_of_panel() + word / kStep;
    for (; count > 0; count -= kStep, word += kStep, from += kStep * 64, to += kStep * 128, ++are_small) {
      const int64_t words = count < kStep ? count : kStep;
      if (!is_scaled_) {
        *are_small ? widen(from, words, to, [](__m512i numbers, int) { return any(numbers); })
                   : widen(from, words, to, [](__m512i numbers, int) { return normal(numbers); });
        continue;
      }
      const int64_t column = uint32_t(word) / uint32_t(block_);
      const __m512i exponents[2] = {exponents_of(panel, 0, column), exponents_of(panel, 16, column)};
      *are_small ? widen(from, words, to, [&](__m512i numbers, int half) { return any(numbers, exponents[half]); })
                 : widen(from, words, to, [&](__m512i numbers, int half) { return normal(numbers, exponents[half]); });
    }
  }

 private:
  using Bits = modulm::MODULM_ISA::Bits<element>;
  static constexpr int64_t kStep = 16;  // words
  static constexpr int64_t kAway = 4 << 10;  // bytes between what is widened and what is asked for

  // What to add to both halves of a word of 16 rows from `lane` on.
  __m512i exponents_of(int64_t panel, int lane, int64_t column) const {
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

  template <class Number>
  static void widen(const uint8_t* from, int64_t words, uint8_t* to, const Number& number) {
    for (const uint8_t* end = from + 64 * words; from < end; from += 64, to += 128) {
      __builtin_prefetch(from + kAway, 0, 2);
      _mm512_store_si512(to, number(load(from), 0));
      _mm512_store_si512(to + 64, number(load(from + 32), 1));
    }
  }

  // 32 numbers in 16 bits each, the upper ones being copies of the sign.
  static __m512i load(const uint8_t* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m512i shifted(__m512i numbers) { return _mm512_slli_epi16(numbers, Bits::kShift); }
  static __mmask32 small_ones(__m512i numbers) {
    return _mm512_testn_epi16_mask(numbers, _mm512_set1_epi16(Bits::kExponent));
  }

  static __m512i kept() { return _mm512_set1_epi16(Bits::kKept); }

  // As factors, see `Bits`; then what has been scaled by an exponent. `any` are those of which some may be small.
  static __m512i normal(__m512i numbers) {
    return _mm512_ternarylogic_epi32(shifted(numbers), kept(), _mm512_set1_epi16(Bits::kUpper), 0x6a);  // a & b ^ c
  }

  static __m512i any(__m512i numbers) {
    const __m512i upper = _mm512_set1_epi16(Bits::kUpper), table = _mm512_load_si512(kBits<element>.changes);
    const __m512i change = _mm512_mask_permutexvar_epi16(upper, small_ones(numbers), numbers, table);  // 5 bits count
    return _mm512_ternarylogic_epi32(shifted(numbers), kept(), change, 0x6a);
  }

  static __m512i normal(__m512i numbers, __m512i exponent) {
    const __m512i with_bias = _mm512_add_epi16(exponent, _mm512_set1_epi16(Bits::kBias));
    return _mm512_add_epi16(_mm512_and_si512(shifted(numbers), kept()), with_bias);
  }

  static __m512i any(__m512i numbers, __m512i exponent) {
    const __m512i found = _mm512_permutexvar_epi16(numbers, _mm512_load_si512(kBits<element>.small));
    const __m512i small = _mm512_mask_add_epi16(found, _mm512_test_epi16_mask(found, found), found, exponent);  // 0 stays 0
    const __m512i sign = _mm512_and_si512(numbers, _mm512_set1_epi16(short(0x8000)));
    return _mm512_mask_mov_epi16(normal(numbers, exponent), small_ones(numbers), _mm512_or_si512(small, sign));
  }

  const DensePanels& weight_;
  const bool is_scaled_;
  const int64_t block_;  // words that have one exponent
};

}  // namespace
}  // namespace modulm::MODULM_ISA
