// 8-bit floats by one token, as they come from memory: to widen them for tiles costs more than tiles save. Numbers are added
// up as tiles do, so that how many tokens there are changes no result: of each step first inputs of words and second ones
// apart, word by word, then both sums together. Included by kernels of the namespace `amx` only.
#pragma once

#include "linear_bf16_lines.hpp"
#include "linear_float8_rounded.hpp"

namespace modulm::MODULM_ISA {
namespace {

// A panel's sums over spans of words.
template <Element element>
class Lines {
 public:
  Lines(const DensePanels& weight, int64_t panel)
      : weight_(weight), panel_(panel), data_(weight.data + panel * weight.panel_bytes()),
        are_small_(weight.small_steps + panel * weight.small_steps_of_panel()),
        has_exponents_(has_small_exponents(weight.scales)),
        block_(weight.scales.columns == 1 ? weight.inputs : weight.scales.inputs / 2) {}

  // The sums [32 rows] of words [word, end), which begin a step.
  void add(int64_t word, int64_t end, const Activations& x, float* sums) const {
    const NoSubnormals none;
    alignas(64) float scales[kPanel];
    for (float& scale : scales) scale = Bits<element>::kFactor;
    Vec totals[2] = {all(0.0f), all(0.0f)};
    for (; word < end; word += kWords) {
      const int64_t step = word / kWords, stop = word + kWords < end ? word + kWords : end;
      Vec rows[2];
      are_small_[step] ? add_step<true>(word, stop, step_of(x, step, 0), rows)
                       : add_step<false>(word, stop, step_of(x, step, 0), rows);
      if (has_exponents_) {
        fill_scales(weight_, panel_, uint32_t(word) / uint32_t(block_), Bits<element>::kFactor, scales);
      }
      for (int v = 0; v < 2; ++v) totals[v] = totals[v] + rows[v] * load(scales + v * kLanes);
    }
    for (int v = 0; v < 2; ++v) store(sums + v * kLanes, totals[v]);
  }

 private:
  struct Sums {
    __m512 first[2] = {}, second[2] = {};
  };

  template <bool some_are_small>
  void add_step(int64_t word, int64_t end, const float* x, Vec (&rows)[2]) const {
    // Of two words both first inputs, the earlier one in the upper half, which is added first; then both second ones.
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11));
    alignas(64) int32_t pairs[kWords];
    _mm512_store_si512(pairs, _mm512_shuffle_epi8(_mm512_load_si512(x), order));
    Sums sums;
    const uint8_t* at = data_ + word * (kPanel * 2);
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i += 2, at += 128) {
      if (word + i >= end) break;
      __builtin_prefetch(at + kBytesNear, 0, 2);
      __builtin_prefetch(at + kBytesNear + 64, 0, 2);
      const __m512i before = _mm512_loadu_si512(at), after = _mm512_loadu_si512(at + 64);
      add_words<some_are_small>(_mm512_unpacklo_epi16(after, before), pairs + i, sums.first[0], sums.second[0]);
      add_words<some_are_small>(_mm512_unpackhi_epi16(after, before), pairs + i, sums.first[1], sums.second[1]);
    }
    const __m512 low = sums.first[0] + sums.second[0], high = sums.first[1] + sums.second[1];
    const __m512i upper = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);  // undoes unpacking
    rows[0] = _mm512_permutex2var_ps(low, upper, high);
    rows[1] = _mm512_permutex2var_ps(low, _mm512_add_epi32(upper, _mm512_set1_epi32(8)), high);
  }

  // Two words of 16 rows, the earlier one in the upper half.
  template <bool some_are_small>
  static void add_words(__m512i words, const int32_t* pair, __m512& first, __m512& second) {
    const __m512i up = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1, 12, -1, 14));
    first = product(first, widened<some_are_small>(_mm512_shuffle_epi8(words, up)), pair[0]);
    second = product(second, widened<some_are_small>(words), pair[1]);
  }

  static __m512 product(__m512 sum, __m512i weights, int32_t inputs) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(inputs));
  }

  // The upper bytes of 16 bits as factors, see `Bits`.
  template <bool some_are_small>
  static __m512i widened(__m512i bytes) {
    using Bits = modulm::MODULM_ISA::Bits<element>;
    const __m512i moved = _mm512_srai_epi16(bytes, 8 - Bits::kShift);
    __m512i change = _mm512_set1_epi16(Bits::kUpper);
    if constexpr (some_are_small) {
      const __mmask32 small = _mm512_testn_epi16_mask(moved, _mm512_set1_epi16(Bits::kExponent << Bits::kShift));
      const __m512i fraction = _mm512_srli_epi16(moved, Bits::kShift);  // 5 bits count, of which some are 0
      change = _mm512_mask_permutexvar_epi16(change, small, fraction, _mm512_load_si512(kBits<element>.changes));
    }
    return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi16(Bits::kKept), change, 0x6a);  // a & b ^ c
  }

  const DensePanels& weight_;
  const int64_t panel_;
  const uint8_t *const data_, *const are_small_;
  const bool has_exponents_;
  const int64_t block_;  // words that have one exponent
};

}  // namespace
}  // namespace modulm::MODULM_ISA
