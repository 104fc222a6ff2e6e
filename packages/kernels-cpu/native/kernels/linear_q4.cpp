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

namespace modulm::MODULM_ISA {
namespace {

// Store a block's rows of one token.
void put(const Q4Out& out, int64_t token, int64_t row, int64_t count, Floats values) {
  const int64_t at = token * out.stride + row;
  if (out.type == Float::f32 && count >= kLanes) return store(static_cast<float*>(out.data) + at, values);
  alignas(64) float lanes[kLanes];
  store(lanes, values);
  for (int64_t r = 0; r < kLanes && r < count; ++r) {
    if (out.type == Float::f32) {
      static_cast<float*>(out.data)[at + r] = lanes[r];
    } else {
      static_cast<uint16_t*>(out.data)[at + r] = out.type == Float::f16 ? to_f16(lanes[r]) : to_bf16(lanes[r]);
    }
  }
}

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

// Adds to `total` what the high codes of a token make of a block. There are few, and as many in every block: a loop of
// their own costs less than a look in each unit.
template <Q4Kind kKind, int kUnit>
inline Floats add_high(const UnitSums<kKind>& unit_sums, const Q4View& weight, const uint8_t* block, bool half,
                       const QuantizedRows& x, int64_t token, Floats total) {
  const HighQuad* quad = x.high + token * x.num_groups;
  for (const HighQuad* end = quad + x.num_high[token]; quad < end; ++quad) {
    const uint32_t unit = uint32_t(quad->unit), units = uint32_t(weight.units_per_group);
    const uint32_t group = units == 1 ? unit : unit / units, in_group = units == 1 ? 0 : unit % units;
    const uint8_t* head = block + group * weight.group_bytes();
    const uint8_t* nibbles = head + weight.head_bytes() + in_group * (kLanes * kUnit / 2);
    nibbles += quad->quad / 2 * (4 * kLanes);
    const Floats factor = multiply(load_scales(head, half), broadcast(quad->scale));
    total = fma(to_floats(unit_sums.quad_products(nibbles, quad->quad % 2, *quad)), factor, total);
  }
  return total;
}

template <Q4Kind kKind, int kUnit, int T>
[[gnu::noinline]] void fast_block(const Q4View& weight, const QuantizedRows& x, int64_t block, int64_t token,
                                  const Q4Out& out) {
  const UnitSums<kKind> unit_sums(weight);
  const bool half = weight.scale_type == Float::f16;
  const int64_t tile = x.tile, units_per_group = weight.units_per_group, groups = weight.groups;
  const int64_t head_bytes = weight.head_bytes(), scale_bytes = weight.scale_bytes();
  const uint8_t *begin = weight.data + block * weight.block_bytes(), *at = begin;
  TileAt from(x, token);
  Floats total[T];
  for (int t = 0; t < T; ++t) total[t] = zero();
  for (int64_t g = 0; g < groups; ++g) {
    const Floats scale = load_scales(at, half);
    const Floats minimum = kKind == Q4Kind::minimums ? load_scales(at + scale_bytes, half) : zero();
    at += head_bytes;
    for (int64_t u = 0; u < units_per_group; ++u, at += kLanes * kUnit / 2, from.advance<kUnit>(tile)) {
      Ints products[T];
      unit_sums.template operator()<kUnit, T>(at, from.codes, from.code_sums, products);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Floats factor = multiply(scale, broadcast(from.scales[t]));
        total[t] = fma(to_floats(products[t]), factor, total[t]);
        if (kKind == Q4Kind::minimums) total[t] = fma(minimum, broadcast(from.sums[t]), total[t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    total[t] = add_high<kKind, kUnit>(unit_sums, weight, begin, half, x, token + t, total[t]);
  }
  const int64_t row = block * kLanes;
  for (int t = 0; t < T; ++t) {
    const Floats result = kKind == Q4Kind::codebook ? multiply(total[t], broadcast(weight.step)) : total[t];
    put(out, token + t, row, weight.out_features - row, result);
  }
}

template <Q4Kind kKind, int T>
[[gnu::noinline]] void exact_block(const Q4View& weight, const float* x, int64_t block, int64_t token,
                                   const Q4Out& out) {
  const ValueTable table(weight.values);
  const bool half = weight.scale_type == Float::f16;
  const int64_t row_size = weight.units() * weight.unit, eights = weight.units_per_group * weight.unit / 8;
  const uint8_t* at = weight.data + block * weight.block_bytes();
  const float* from = x + token * row_size;
  Floats total[T][2];  // of low and of high nibbles: two chains hide the latency of one
  for (int t = 0; t < T; ++t) total[t][0] = total[t][1] = zero();
  for (int64_t g = 0; g < weight.groups; ++g) {
    const Floats scale = load_scales(at, half);
    const Floats minimum = kKind == Q4Kind::minimums ? load_scales(at + weight.scale_bytes(), half)
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
void by_tokens(int64_t begin, int64_t end, int64_t first, int64_t last, const Step& step) {
  for (int64_t token = begin; token < end;) {
    const int64_t left = end - token;
    const int count = left >= 8 && kMaxTokens >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int64_t block = first; block < last; ++block) {
      switch (count) {
        case 8: step.template operator()<kMaxTokens>(block, token); break;
        case 4: step.template operator()<4>(block, token); break;
        case 2: step.template operator()<2>(block, token); break;
        default: step.template operator()<1>(block, token);
      }
    }
    token += count;
  }
}

template <Q4Kind kKind, int kUnit>
void fast_of(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
             const Q4Out& out) {
  by_tokens(begin, end, first, last, [&]<int T>(int64_t block, int64_t token) {
    fast_block<kKind, kUnit, T>(weight, x, block, token, out);
  });
}

template <Q4Kind kKind>
void fast_kind(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
               const Q4Out& out) {
  if (weight.unit == 32) return fast_of<kKind, 32>(weight, x, first, last, begin, end, out);
  fast_of<kKind, 16>(weight, x, first, last, begin, end, out);
}

void fast(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
          const Q4Out& out) {
  switch (weight.kind) {
    case Q4Kind::minimums: return fast_kind<Q4Kind::minimums>(weight, x, first, last, begin, end, out);
    case Q4Kind::offset: return fast_kind<Q4Kind::offset>(weight, x, first, last, begin, end, out);
    case Q4Kind::codebook: return fast_kind<Q4Kind::codebook>(weight, x, first, last, begin, end, out);
  }
}

template <Q4Kind kKind>
void exact_kind(const Q4View& weight, const float* x, int64_t first, int64_t last, int64_t begin, int64_t end,
                const Q4Out& out) {
  by_tokens(begin, end, first, last, [&]<int T>(int64_t block, int64_t token) {
    exact_block<kKind, T>(weight, x, block, token, out);
  });
}

void exact(const Q4View& weight, const float* x, int64_t first, int64_t last, int64_t begin, int64_t end,
           const Q4Out& out) {
  switch (weight.kind) {
    case Q4Kind::minimums: return exact_kind<Q4Kind::minimums>(weight, x, first, last, begin, end, out);
    case Q4Kind::offset: return exact_kind<Q4Kind::offset>(weight, x, first, last, begin, end, out);
    case Q4Kind::codebook: return exact_kind<Q4Kind::codebook>(weight, x, first, last, begin, end, out);
  }
}

}  // namespace

extern const LinearQ4Kernels linear_q4;
const LinearQ4Kernels linear_q4{kLanes, kMaxTokens, fast, exact};

}  // namespace modulm::MODULM_ISA
