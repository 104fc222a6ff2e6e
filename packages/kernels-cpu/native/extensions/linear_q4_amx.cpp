// Products with 4-bit weights in tiles (see `linear_q4.hpp` for the layout and for the order of additions, which is the
// same): a unit of 16 rows becomes bytes once for many tokens, one instruction multiplies it by 16 of them, and the sums,
// exact integers, are scaled as AVX-512 does it. Few tokens are AVX-512's: the bits are the same.
#include <algorithm>

#include "linear_q4_avx512.hpp"
#include "linear_q4_totals.hpp"
#include "tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTileTokens = 16;
constexpr int64_t kFewTokens = 5;   // fewer of a tile are not worth one
constexpr int64_t kMostTiles = 4;   // of tokens that share a block's bytes
constexpr int64_t kMostUnits = 48;  // whose bytes stay in the L1 cache

// Some units of a block as tiles and numbers.
struct Units {
  alignas(64) int8_t bytes[kMostUnits * 32 * kLanes];
  Floats scales[kMostUnits], minimums[kMostUnits];
};

// 16 rows' bytes of one unit, 4 inputs of each row side by side: what a tile of weights is.
template <Q4Kind kKind, int kUnit>
inline void unpack_unit(const uint8_t* nibbles, __m512i steps, __m512i offset, int8_t* to) {
#pragma GCC unroll 4
  for (int j = 0; j < kUnit / 8; ++j) {
    const Ints raw = load_nibbles(nibbles + 4 * kLanes * j);
    Ints low = low_codes(raw), high = high_codes(raw);
    if constexpr (kKind == Q4Kind::codebook) {
      low = _mm512_shuffle_epi8(steps, low), high = _mm512_shuffle_epi8(steps, high);
    } else if constexpr (kKind == Q4Kind::offset) {
      low = _mm512_sub_epi8(low, offset), high = _mm512_sub_epi8(high, offset);
    }
    _mm512_store_si512(to + 128 * j, low);
    _mm512_store_si512(to + 128 * j + 64, high);
  }
}

// Units [first, last) of the block that begins at `block`. What lies at `soon` is asked for meanwhile.
template <Q4Kind kKind, int kUnit>
void unpack(const Q4View& weight, const uint8_t* block, int64_t first, int64_t last, const uint8_t* soon, Units* to) {
  const __m512i offset = _mm512_set1_epi8(char(weight.offset));
  const __m512i steps = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weight.steps)));
  const int64_t per_group = weight.units_per_group, group_bytes = weight.group_bytes();
  for (int64_t u = first; u < last; ++u) {
    const uint8_t* head = block + u / per_group * group_bytes;
    const uint8_t* nibbles = head + weight.head_bytes() + u % per_group * (kLanes * kUnit / 2);
    if (soon != nullptr) ask_for(soon + (nibbles - block), weight.unit_bytes() + weight.head_bytes());
    unpack_unit<kKind, kUnit>(nibbles, steps, offset, to->bytes + (u - first) * (kUnit * kLanes));
    const Floats scale = to->scales[u - first] = load_scales(head, weight.scale_type);
    if (kKind == Q4Kind::minimums) to->minimums[u - first] = minimums_of(weight, head, scale);
  }
}

// The products of a unit, 16 tokens by 16 rows: [token][row]. Two of them, on tiles of their own, may be under way.
template <int kUnit>
inline void multiply_even(const int8_t* codes, const int8_t* bytes, int32_t* sums) {
  _tile_zero(0);
  _tile_loadd(4, codes, kUnit);
  _tile_loadd(6, bytes, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_stored(0, sums, 64);
}

template <int kUnit>
inline void multiply_odd(const int8_t* codes, const int8_t* bytes, int32_t* sums) {
  _tile_zero(1);
  _tile_loadd(5, codes, kUnit);
  _tile_loadd(7, bytes, 64);
  _tile_dpbssd(1, 5, 7);
  _tile_stored(1, sums, 64);
}

// Adds units [first, last), as they are in `units`, to the totals of 16 tokens. A unit's products are begun before those
// of the last one are scaled: otherwise both would wait for each other.
template <Q4Kind kKind, int kUnit>
[[gnu::noinline]] void add_units(const Units& units, const QuantizedRows& x, int64_t token, int64_t first, int64_t last,
                                 Floats (&totals)[kTileTokens]) {
  constexpr int64_t products = kTileTokens * kLanes, ring = 2;
  alignas(64) int32_t sums[ring * products];
  Floats total[kTileTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTileTokens; ++t) total[t] = totals[t];
  const int64_t at = x.at(token, first), count = last - first;
  const int8_t* codes = x.codes + at * kUnit;
  const auto begin = [&](int64_t u) {
    const int8_t *from = codes + u * (kTileTokens * kUnit), *bytes = units.bytes + u * (kUnit * kLanes);
    int32_t* to = sums + u % ring * products;
    u % 2 == 0 ? multiply_even<kUnit>(from, bytes, to) : multiply_odd<kUnit>(from, bytes, to);
  };
  begin(0);
  for (int64_t u = 0; u < count; ++u) {
    if (u + 1 < count) begin(u + 1);
    const int32_t* from = sums + u % ring * products;
    const float *scales = x.scales + at + u * kTileTokens, *whole = x.sums + at + u * kTileTokens;
    const Floats scale = units.scales[u], minimum = units.minimums[u];
#pragma GCC unroll 16
    for (int t = 0; t < kTileTokens; ++t) {
      const Floats factor = multiply(scale, broadcast(scales[t]));
      total[t] = fma(to_floats(_mm512_load_si512(from + t * kLanes)), factor, total[t]);
      if (kKind == Q4Kind::minimums) total[t] = fma(minimum, broadcast(whole[t]), total[t]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTileTokens; ++t) totals[t] = total[t];
}

// One block for tokens [begin, end), which are whole tiles but for what is beyond the last, at most `kMostTiles`.
template <Q4Kind kKind, int kUnit>
void multiply_block(const Q4View& weight, const QuantizedRows& x, int64_t block, int64_t begin, int64_t end,
                    const Q4Out& out, const uint8_t* soon) {
  Units units;
  Floats totals[kMostTiles][1][kTileTokens];
  const uint8_t* data = weight.data + block * weight.block_bytes();
  const int64_t tiles = (end - begin + kTileTokens - 1) / kTileTokens;
  for (int64_t i = 0; i < tiles; ++i) std::fill_n(totals[i][0], kTileTokens, zero());
  for (int64_t first = 0; first < weight.units(); first += kMostUnits) {
    const int64_t last = std::min(first + kMostUnits, weight.units());
    unpack<kKind, kUnit>(weight, data, first, last, soon, &units);
    written();
    for (int64_t i = 0; i < tiles; ++i) {
      add_units<kKind, kUnit>(units, x, begin + i * kTileTokens, first, last, totals[i][0]);
    }
  }
  const UnitSums<kKind> unit_sums(weight);
  const int64_t row = block * kLanes;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t tile = (token - begin) / kTileTokens, t = (token - begin) % kTileTokens;
    add_high<kKind, kUnit>(unit_sums, weight, data, x, token - t, int(t), totals[tile]);
    const Floats total = totals[tile][0][t];
    put(out, token, row, weight.out_features - row,
        kKind == Q4Kind::codebook ? multiply(total, broadcast(weight.step)) : total);
  }
}

template <Q4Kind kKind, int kUnit>
void multiply_blocks(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin,
                     int64_t end, const Q4Out& out, const Q4Ahead& ahead) {
  TileShapes shapes;
  for (int tile = 0; tile < 4; ++tile) shapes.set(tile, kTileTokens, 64);
  for (int tile = 4; tile < 6; ++tile) shapes.set(tile, kTileTokens, kUnit);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, kUnit / 4, 64);
  const Tiles tiles(shapes);
  for (int64_t block = first; block < last; ++block) {
    const uint8_t* soon = soon_after(weight.data + block * weight.block_bytes(), ahead);
    for (int64_t token = begin; token < end; token += kMostTiles * kTileTokens) {
      multiply_block<kKind, kUnit>(weight, x, block, token, std::min(token + kMostTiles * kTileTokens, end), out,
                                   token == begin ? soon : nullptr);
    }
  }
}

void fast(const Q4View& weight, const QuantizedRows& x, int64_t first, int64_t last, int64_t begin, int64_t end,
          const Q4Out& out, const Q4Ahead& ahead) {
  const int64_t rest = x.tile < kTileTokens ? end - begin : (end - begin) % kTileTokens;
  const int64_t tiled = rest < kFewTokens || x.tile < kTileTokens ? end - rest : end;
  if (tiled > begin) {
    with_kind(weight.kind, [&]<Q4Kind kKind>() {
      const auto multiply = weight.unit == 32 ? multiply_blocks<kKind, 32> : multiply_blocks<kKind, 16>;
      multiply(weight, x, first, last, begin, tiled, out, ahead);
    });
  }
  if (tiled < end) {
    avx512::linear_q4.fast(weight, x, first, last, tiled, end, out, tiled > begin ? Q4Ahead{} : ahead);
  }
}

void exact(const Q4View& weight, const float* x, int64_t first, int64_t last, int64_t begin, int64_t end,
           const Q4Out& out) {
  avx512::linear_q4.exact(weight, x, first, last, begin, end, out);
}

}  // namespace

extern const LinearQ4Kernels linear_q4;
const LinearQ4Kernels linear_q4{kLanes, kTileTokens, fast, exact};

}  // namespace modulm::MODULM_ISA
