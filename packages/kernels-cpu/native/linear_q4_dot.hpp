// Sums of units of `kernels/linear_q4.cpp` where one instruction adds four products of bytes to each lane: AVX-VNNI,
// AVX-512 and Arm with dot products. One text over the vectors of the file that includes it, which has
//   kSignedCodes                     whether the instruction takes codes as signed bytes (else as unsigned ones),
//   low_codes(raw), high_codes(raw)  the low and the high nibbles of what `load_nibbles` returns, as bytes,
//   quad_codes(nibbles, high)        either of them, loaded,
//   all_ints(value), activation(x)   one integer, or the same 4 inputs, in each lane,
//   StepTable(steps)(codes)          the steps of a codebook: as they are, or 128 more where codes are unsigned,
//   dot(sum, codes, four)            the instruction, `four` being an `activation`,
//   dot_quad<quad>(sum, codes, x)    the same with inputs 4 * quad to 4 * quad + 3 of x.
#pragma once

#include "in_turn.hpp"

namespace modulm::MODULM_ISA {
namespace {

// For each of T tokens, the sum of a unit's products in every row. What steps were raised by, or the offset of codes, is
// taken away before, times the sum of the activations' codes.
template <Q4Kind kKind>
struct UnitSums {
  StepTable steps;
  int32_t offset;

  explicit UnitSums(const Q4View& weight)
      : steps(weight.steps), offset(kKind != Q4Kind::codebook ? weight.offset : kSignedCodes ? 0 : 128) {}

  template <int kUnit, int T>
  inline void operator()(const uint8_t* nibbles, const int8_t* x, const int32_t* code_sums, Ints (&sums)[T]) const {
    of_blocks<kUnit>(nibbles, 0, x, code_sums, reinterpret_cast<Ints(&)[1][T]>(sums));
  }

  // The same of several blocks, `stride` bytes apart.
  template <int kUnit, int kBlocks, int T>
  inline void of_blocks(const uint8_t* nibbles, int64_t stride, const int8_t* x, const int32_t* code_sums,
                        Ints (&sums)[kBlocks][T]) const {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Ints from = start(code_sums[t]);
      for (int b = 0; b < kBlocks; ++b) sums[b][t] = from;
    }
    quads_in_turn<kUnit / 8>([&](auto j) {
      Ints low[kBlocks], high[kBlocks];
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) {
        const auto raw = load_nibbles(nibbles + b * stride + 4 * kLanes * int(j));
        low[b] = taken(low_codes(raw));
        high[b] = taken(high_codes(raw));
      }
      add_quads<2 * int(j)>(low, x, kUnit, sums);
      add_quads<2 * int(j) + 1>(high, x, kUnit, sums);
    });
  }

  // The same of one quad set apart, which lies in the low (`high` 0) or high nibbles.
  inline Ints quad_products(const uint8_t* nibbles, int high, const HighQuad& x) const {
    return dot(start(x.sum), taken(quad_codes(nibbles, high)), activation(x.codes));
  }

 private:
  template <int quad, int kBlocks, int T>
  static inline void add_quads(const Ints (&codes)[kBlocks], const int8_t* x, int64_t stride,
                               Ints (&sums)[kBlocks][T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) sums[b][t] = dot_quad<quad>(sums[b][t], codes[b], x + t * stride);
    }
  }
  inline Ints start(int32_t sum) const { return all_ints(kKind == Q4Kind::minimums ? 0 : -offset * sum); }
  inline Ints taken(Ints codes) const {
    if constexpr (kKind == Q4Kind::codebook) return steps(codes);
    return codes;
  }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
