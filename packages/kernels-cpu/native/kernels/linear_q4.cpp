// Products with 4-bit weights: one text over the vectors of the instruction set (see `linear_q4.hpp` for the layout).
//
// A block's unit is unpacked once and used for T tokens. The order of additions depends on neither T nor the caller's
// split, so a token's result does not depend on what else is in the batch.
#if defined(__AVX512VNNI__)
#include "linear_q4_avx512.hpp"
#elif defined(__AVXVNNI__)
#include "linear_q4_avxvnni.hpp"
#elif defined(__AVX2__)
#include "linear_q4_avx2.hpp"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "linear_q4_neon.hpp"
#else
#include "linear_q4_generic.hpp"
#endif
#include "in_turn.hpp"
#include "linear_q4_totals.hpp"

namespace modulm::MODULM_ISA {
namespace {

// The activations of T tokens that lie in one tile, at a unit that moves on.
struct TileAt {
  const int8_t* codes;
  const float *scales, *sums;
  const int32_t* code_sums;

  TileAt(const QuantizedRows& x, int64_t token) {
    const int64_t at = x.at(token, 0);
    codes = x.codes + at * x.group;
    scales = x.scales + at;
    sums = x.sums + at;
    code_sums = x.code_sums + at;
  }

  template <int kUnit>
  void advance(int64_t tile) {
    codes += tile * kUnit;
    scales += tile;
    sums += tile;
    code_sums += tile;
  }
};

// What compilers may take for granted of a weight, and of activations: nothing,
struct Any {
  static constexpr int kGroupsAtOnce = 1;
  static bool holds(const Q4View&, const QuantizedRows&) { return true; }
};

// or of what type scales are, that each is for so many units, and that tokens lie apart: loops become as short as they can be.
template <int kUnit, ScaleType kScales, int kUnits>
struct Known {
  static constexpr int kGroupsAtOnce = 64 / kUnit;
  static bool holds(const Q4View& weight, const QuantizedRows& x) {
    return weight.lanes == kLanes && weight.unit == kUnit && weight.scale_type == kScales &&
           weight.units_per_group == kUnits && x.tile == 1;
  }
};

// Blocks that follow each other, with T tokens. What lies at `soon` is asked for meanwhile.
template <Q4Kind kKind, int kUnit, int kBlocks, int T, class Shape>
[[gnu::noinline]] void fast_blocks(const Q4View& weight, const QuantizedRows& x, int64_t block, int64_t token,
                                   const Q4Out& out, const uint8_t* soon) {
  if (!Shape::holds(weight, x)) __builtin_unreachable();
  const UnitSums<kKind> unit_sums(weight);
  const int64_t tile = x.tile, units_per_group = weight.units_per_group;
  int64_t left = weight.groups;
  const int64_t head_bytes = weight.head_bytes(), group_bytes = weight.group_bytes(), stride = weight.block_bytes();
  const uint8_t *begin = weight.data + block * stride, *at = begin;
  TileAt from(x, token);
  Floats total[kBlocks][T];
  for (int b = 0; b < kBlocks; ++b) {
    for (int t = 0; t < T; ++t) total[b][t] = zero();
  }
  const auto add_group = [&] {
    Floats scale[kBlocks], minimum[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      scale[b] = load_scales(at + b * stride, weight.scale_type);
      minimum[b] = kKind == Q4Kind::minimums ? minimums_of(weight, at + b * stride, scale[b]) : zero();
    }
    at += head_bytes;
    for (int64_t u = 0; u < units_per_group; ++u, at += kLanes * kUnit / 2, from.advance<kUnit>(tile)) {
      Ints products[kBlocks][T];
      if constexpr (kBlocks == 1) {
        unit_sums.template operator()<kUnit, T>(at, from.codes, from.code_sums, products[0]);
      } else {
        unit_sums.template of_blocks<kUnit>(at, stride, from.codes, from.code_sums, products);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
        for (int b = 0; b < kBlocks; ++b) {
          const Floats factor = multiply(scale[b], broadcast(from.scales[t]));
          total[b][t] = fma(to_floats(products[b][t]), factor, total[b][t]);
          if (kKind == Q4Kind::minimums) total[b][t] = fma(minimum[b], broadcast(from.sums[t]), total[b][t]);
        }
      }
    }
  };
  // Several groups in turn; lines are asked for one by one, as many at once would wait for each other.
  const auto add_groups = [&](auto count) {
    const int64_t bytes = kBlocks * group_bytes;
    for (; left >= count; left -= count) {
      quads_in_turn<int(count)>([&](auto number) {
        if (soon != nullptr) {
          for (int64_t line = (number * bytes + 63) / 64; line * 64 < (number + 1) * bytes; ++line) ask_for(soon + line * 64, 64);
        }
        add_group();
      });
      if (soon != nullptr) soon += count * bytes;
    }
  };
  if constexpr (Shape::kGroupsAtOnce > 1) add_groups(Number<Shape::kGroupsAtOnce>());
  add_groups(Number<1>());
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    add_high<kKind, kUnit>(unit_sums, weight, begin, x, token, t, total);
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t row = (block + b) * kLanes;
      const Floats sum = kKind == Q4Kind::codebook ? multiply(total[b][t], broadcast(weight.step)) : total[b][t];
      put(out, token + t, row, weight.out_features - row, sum);
    }
  }
}

template <Q4Kind kKind, int T>
[[gnu::noinline]] void exact_block(const Q4View& weight, const float* x, int64_t block, int64_t token,
                                   const Q4Out& out) {
  const ValueTable table(weight.values);
  const int64_t row_size = weight.units() * weight.unit, eights = weight.units_per_group * weight.unit / 8;
  const uint8_t* at = weight.data + block * weight.block_bytes();
  const float* from = x + token * row_size;
  Floats total[T][2];  // of low and of high nibbles: two chains hide the latency of one
  for (int t = 0; t < T; ++t) total[t][0] = total[t][1] = zero();
  for (int64_t g = 0; g < weight.groups; ++g) {
    const Floats scale = load_scales(at, weight.scale_type);
    const Floats minimum = kKind == Q4Kind::minimums ? minimums_of(weight, at, scale)
                                                     : multiply(scale, broadcast(-float(weight.offset)));
    at += weight.head_bytes();
    for (int64_t j = 0; j < eights; ++j, at += 4 * kLanes, from += 8) {
      const auto nibbles = load_nibbles(at);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const int high = i / 4, byte = i % 4;
        const Floats value = kKind == Q4Kind::codebook ? multiply(table(nibbles, high, byte), scale)
                                                       : add(multiply(code(nibbles, high, byte), scale), minimum);
        for (int t = 0; t < T; ++t) total[t][high] = fma(value, broadcast(from[t * row_size + i]), total[t][high]);
      }
    }
  }
  const int64_t row = block * kLanes;
  for (int t = 0; t < T; ++t) put(out, token + t, row, weight.out_features - row, add(total[t][0], total[t][1]));
}

// Take tokens [begin, end) in steps of 8 (where the instruction set has room), 4, 2 and 1; `Step` does T of them.
template <class Step>
void by_tokens(int64_t begin, int64_t end, const Step& step) {
  for (int64_t token = begin; token < end;) {
    const int64_t left = end - token;
    const int count = left >= 8 && kMaxTokens >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    switch (count) {
      case 8: step.template operator()<kMaxTokens>(token); break;
      case 4: step.template operator()<4>(token); break;
      case 2: step.template operator()<2>(token); break;
      default: step.template operator()<1>(token);
    }
    token += count;
  }
}

// One token by blocks [first, last), if it lies as `Shape` says.
template <Q4Kind kKind, int kUnit, ScaleType kScales, int kUnits = 1>
bool is_one_of(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t token,
               const Q4Out& out, const Q4Ahead& ahead) {
  using Shape = Known<kUnit, kScales, kUnits>;
  if (weight.kind != kKind || !Shape::holds(weight, x)) return false;
  for (int64_t block = first; block < last; ++block) {
    const uint8_t* soon = soon_after(weight.data + block * weight.block_bytes(), ahead);
    fast_blocks<kKind, kUnit, 1, 1, Shape>(weight, x, block, token, out, soon);
  }
  return true;
}

template <Q4Kind kKind, int kUnit>
void fast_of(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
             const Q4Out& out, const Q4Ahead& ahead) {
  const auto multiply = [&]<int kBlocks>(int64_t block) {
    const uint8_t* soon = soon_after(weight.data + block * weight.block_bytes(), ahead);
    by_tokens(begin, end, [&]<int T>(int64_t token) {
      fast_blocks<kKind, kUnit, kBlocks, T, Any>(weight, x, block, token, out, token == begin ? soon : nullptr);
    });
  };
  int64_t block = first;
  // One token waits for memory, which is read fastest from one end to the other.
  const int64_t pairs_end = end - begin > 1 ? last : first;
  for (; block + kBlocksAtOnce <= pairs_end; block += kBlocksAtOnce) multiply.template operator()<kBlocksAtOnce>(block);
  for (; block < last; ++block) multiply.template operator()<1>(block);
}

// The kinds that most checkpoints have: NVFP4, MXFP4, integers in groups of 32 with one zero point or with minimums.
constexpr auto kKnown = {
    is_one_of<Q4Kind::codebook, 16, ScaleType::f16_byte>, is_one_of<Q4Kind::codebook, 32, ScaleType::exponent>,
    is_one_of<Q4Kind::offset, 32, ScaleType::f16>, is_one_of<Q4Kind::minimums, 32, ScaleType::f16>};

void fast(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
          const Q4Out& out, const Q4Ahead& ahead) {
  if (end - begin == 1) {
    for (const auto known : kKnown) {
      if (known(weight, x, first, last, begin, out, ahead)) return;
    }
  }
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    const auto multiply = weight.unit == 32 ? fast_of<kKind, 32> : fast_of<kKind, 16>;
    multiply(weight, x, first, last, begin, end, out, ahead);
  });
}

void exact(const Q4View& weight, const float* x, int64_t first, int64_t last, int64_t begin, int64_t end,
           const Q4Out& out) {
  with_kind(weight.kind, [&]<Q4Kind kKind>() {
    for (int64_t block = first; block < last; ++block) {
      by_tokens(begin, end, [&]<int T>(int64_t token) { exact_block<kKind, T>(weight, x, block, token, out); });
    }
  });
}

}  // namespace

extern const LinearQ4Kernels linear_q4;
const LinearQ4Kernels linear_q4{kLanes, kMaxTokens, fast, exact};

}  // namespace modulm::MODULM_ISA
