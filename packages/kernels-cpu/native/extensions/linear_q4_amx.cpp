// Products of many tokens with 4-bit weights in tiles of bfloat16: scales and minimums go into the weights, so that sums run
// over all inputs, where integers must be scaled unit by unit.
#include "linear_coded_tiles.hpp"
#include "linear_q4_values.hpp"

namespace modulm::MODULM_ISA {
namespace {

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

// Numbers of 16 codes as bfloat16, twice; of weights whose units are steps and whose numbers are exact in it.
struct CodedNumbers {
  __m512i numbers;
  bool fit;

  explicit CodedNumbers(const Q4View& weight) {
    Vec wide = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (weight.kind == Q4Kind::offset) wide = wide - all(float(weight.offset));
    if (weight.kind == Q4Kind::codebook) wide = load(Table(weight).numbers);
    const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(wide);
    const __m512i back = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
    fit = weight.unit == kStepInputs && _mm512_cmpneq_epi32_mask(back, _mm512_castps_si512(wide)) == 0;
    numbers = _mm512_broadcast_i64x4(narrow);
  }
};

// See `multiply_rows`. Where there are minimums, 128 + code is what the code's bits below the exponent of 128 stand for: to look
// numbers up takes the port that shifts take too.
template <bool has_minimums>
class CodedSource {
 public:
  CodedSource(const Q4View& weight, const CodedNumbers& numbers, int64_t block)
      : weight_(&weight), numbers_(numbers.numbers), at_(weight.data + block * weight.block_bytes()),
        head_bytes_(weight.head_bytes()), ahead_(kAhead * weight.block_bytes()) {}

  void head(float* to) {
    __builtin_prefetch(at_ + ahead_, 0, 2);
    const Vec scale = scales_at(at_, weight_->scale_type);
    store(to, scale);
    if constexpr (has_minimums) store(to + kLanes, fma(scale, all(-128.0f), minimums_at(*weight_, at_)));
    at_ += head_bytes_;
  }

  // Bytes of codes become words of two inputs.
  void unpack(uint8_t* to) {
    const __m512i order = _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, to += 256, at_ += 64) {
      __builtin_prefetch(at_ + ahead_, 0, 2);
      const __m512i raw = _mm512_shuffle_epi8(_mm512_loadu_si512(at_), order);
      const auto number = [&](int shift) {
        const __m512i code = _mm512_srli_epi16(raw, unsigned(shift));
        if constexpr (!has_minimums) return _mm512_permutexvar_epi16(code, numbers_);  // 5 bits count: the uppermost changes nothing
        return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x4300), code, _mm512_set1_epi16(15), 0xf8);  // a | b & c
      };
      _mm512_store_si512(to, number(0));
      _mm512_store_si512(to + 64, number(8));
      _mm512_store_si512(to + 128, number(4));
      _mm512_store_si512(to + 192, number(12));
    }
  }

 private:
  const Q4View* weight_;
  __m512i numbers_;
  const uint8_t* at_;
  int64_t head_bytes_, ahead_;
};

template <bool has_minimums>
void multiply_codes(const Q4View& weight, const CodedNumbers& numbers, const Activations& x, const Output& out, int64_t begin,
                    int64_t end, int64_t last) {
  const auto source = [&](int64_t block) { return CodedSource<has_minimums>(weight, numbers, block); };
  multiply_coded<has_minimums>(source, weight.blocks(), weight.units_per_group, factor_of(weight), x, out, begin, end, last);
}

float widen(const Q4View& weight, int64_t block, int64_t begin, int64_t end, uint8_t* to) {
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    const Widen<kKind> widen(weight);
    for (int64_t step = begin; step < end; ++step, to += kStepBytes) widen.rows(block, step, to);
  });
  return factor_of(weight);
}

void multiply(const Q4View& weight, const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first,
              int64_t last) {
  if (x.tokens <= kFewTiled) {
    const CodedNumbers numbers(weight);
    const auto multiply = weight.kind == Q4Kind::minimums ? multiply_codes<true> : multiply_codes<false>;
    if (numbers.fit) return multiply(weight, numbers, x, out, begin, end, last);
  }
  const float factor = factor_of(weight);
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    multiply_widened(Widen<kKind>(weight), factor, x, out, begin, end, first, last);
  });
}

}  // namespace

extern const PanelKernels<Q4View> widened_q4;
const PanelKernels<Q4View> widened_q4{tiled_tokens, multiply, widen};

}  // namespace modulm::MODULM_ISA
