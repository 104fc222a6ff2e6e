// Products of many tokens with 4-bit weights in tiles of bfloat16: scales and minimums go into the weights, so that sums run
// over all inputs, where integers must be scaled unit by unit.
#include <cmath>

#include "linear_q4.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

// What 16 codes stand for, before scales: numbers of few bits where there are such, in units of `weight.step`.
struct Table {
  alignas(64) float numbers[16];
  bool are_exact;  // products with all scales fit bfloat16

  explicit Table(const Q4View& weight) {
    const bool is_codebook = weight.kind == Q4Kind::codebook;
    const uint32_t rest = weight.scale_type == ScaleType::f16_byte ? 0xfffffu : 0xffffu;
    are_exact = is_codebook && weight.scale_type >= ScaleType::f16_byte;
    for (int code = 0; code < 16; ++code) {
      const float value = weight.values[code], steps = float(weight.steps[code]);
      const bool is_whole = std::fabs(steps * weight.step - value) <= 0x1p-20f * std::fabs(value);
      numbers[code] = !is_codebook ? float(code) : is_whole ? steps : value / weight.step;
      are_exact &= (__builtin_bit_cast(uint32_t, numbers[code]) & rest) == 0;
    }
  }
};

inline __m512i of_bytes(const uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline Vec scales_at(const uint8_t* from, ScaleType type) {
  switch (type) {
    case ScaleType::f32: return load(reinterpret_cast<const float*>(from));
    case ScaleType::f16: return load(reinterpret_cast<const Half*>(from));
    case ScaleType::f16_byte: return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_slli_epi32(of_bytes(from), 7)));
    case ScaleType::exponent: break;
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(of_bytes(from), 23));
}

// Minimums of a group whose head is at `head`.
inline Vec minimums_at(const Q4View& weight, const uint8_t* head) {
  const uint8_t* at = head + weight.scale_bytes();
  if (!weight.zero_points) return scales_at(at, weight.scale_type);
  return scales_at(head, weight.scale_type) * -_mm512_cvtepi32_ps(of_bytes(at));
}

constexpr int64_t kAhead = 2;  // blocks: the same of the next panel is asked for, as few tokens wait for memory

template <Q4Kind kKind>
class Widen {
 public:
  explicit Widen(const Q4View& weight)
      : weight_(weight), table_(weight), numbers_(load(table_.numbers)), grow_(all(table_.are_exact ? 1.0f : kOfCut)) {}

  // 32 inputs of a panel, which is two blocks.
  void operator()(int64_t panel, int64_t step, uint8_t* to) const {
    rows(2 * panel, step, to);
    if (2 * panel + 1 < weight_.blocks()) rows(2 * panel + 1, step, to + 64);
  }

  // 32 inputs of a block of 16 rows.
  void rows(int64_t number, int64_t step, uint8_t* to) const {
    const uint8_t* block = weight_.data + number * weight_.block_bytes();
    if (weight_.unit == 32) return widen_unit<4>(block, step, to);
    widen_unit<2>(block, 2 * step, to);
    if (2 * step + 1 < weight_.units()) return widen_unit<2>(block, 2 * step + 1, to + kStepBytes / 2);
    clear_half(to);
  }

 private:
  template <int kLoads>
  void widen_unit(const uint8_t* block, int64_t unit, uint8_t* to) const {
    const int64_t per_group = weight_.units_per_group, group = per_group == 1 ? unit : unit / per_group;
    const uint8_t* head = block + group * weight_.group_bytes();
    const uint8_t* nibbles = head + weight_.head_bytes() + (unit - group * per_group) * weight_.unit_bytes();
    __builtin_prefetch(head + kAhead * weight_.block_bytes(), 0, 2);
    const Vec scale = scales_at(head, weight_.scale_type) * grow_, minimum = kKind == Q4Kind::minimums
                                                                            ? minimums_at(weight_, head) * grow_
                                                                            : scale * all(-float(weight_.offset));
    const auto value = [=, this](__m512i raw, int shift) {
      const Vec number = _mm512_permutexvar_ps(_mm512_srli_epi32(raw, unsigned(shift)), numbers_);  // 4 bits count
      return kKind == Q4Kind::codebook ? number * scale : fma(number, scale, minimum);
    };
#pragma GCC unroll 4
    for (int i = 0; i < kLoads; ++i) {
      __builtin_prefetch(nibbles + 64 * i + kAhead * weight_.block_bytes(), 0, 2);
      const __m512i raw = _mm512_loadu_si512(nibbles + 64 * i);
      uint8_t* words = to + 4 * kWordBytes * i;
      store_pairs(words, value(raw, 0), value(raw, 8));
      store_pairs(words + kWordBytes, value(raw, 16), value(raw, 24));
      store_pairs(words + 2 * kWordBytes, value(raw, 4), value(raw, 12));
      store_pairs(words + 3 * kWordBytes, value(raw, 20), value(raw, 28));
    }
  }

  const Q4View& weight_;
  const Table table_;
  const Vec numbers_, grow_;
};

float factor_of(const Q4View& weight) { return weight.kind == Q4Kind::codebook ? weight.step : 1.0f; }

float widen(const Q4View& weight, int64_t block, int64_t begin, int64_t end, uint8_t* to) {
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    const Widen<kKind> widen(weight);
    for (int64_t step = begin; step < end; ++step, to += kStepBytes) widen.rows(block, step, to);
  });
  return factor_of(weight);
}

void multiply(const Q4View& weight, const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first,
              int64_t last) {
  const float factor = factor_of(weight);
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    multiply_widened(Widen<kKind>(weight), factor, x, out, begin, end, first, last);
  });
}

}  // namespace

extern const PanelKernels<Q4View> widened_q4;
const PanelKernels<Q4View> widened_q4{tiled_tokens, multiply, widen};

}  // namespace modulm::MODULM_ISA
