// Products with 2 to 8 bits in tiles (see `linear_int8.hpp` for the layout and the order of additions, which is the same):
// one instruction multiplies a unit of 16 rows, as it lies or widened, by 16 tokens; their sums, exact integers, are scaled
// as AVX-512 does it. Few tokens are AVX-512's: the bits are the same.
#include "linear_int8_scales.hpp"
#include "tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kTokens = 16;              // of a tile
constexpr int64_t kFewTokens = 5;        // fewer are not worth a tile
constexpr int64_t kMostTiled = 12 * kTokens;
constexpr int64_t kBlocksAhead = 16;     // how far ahead of their use codes are asked for

// The products of a unit, `tokens` by 16 rows: [token][row]. Two of them, on tiles of their own, may be under way.
inline void multiply_even(const int8_t* x, int64_t x_stride, const uint8_t* codes, int32_t* sums) {
  _tile_zero(0);
  _tile_loadd(4, x, x_stride);
  _tile_loadd(6, codes, kQuadBytes);
  _tile_dpbsud(0, 4, 6);
  _tile_stored(0, sums, 64);
}

inline void multiply_odd(const int8_t* x, int64_t x_stride, const uint8_t* codes, int32_t* sums) {
  _tile_zero(1);
  _tile_loadd(5, x, x_stride);
  _tile_loadd(7, codes, kQuadBytes);
  _tile_dpbsud(1, 5, 7);
  _tile_stored(1, sums, 64);
}

// Adds units [first, last) of rows `row` to `row` + 15 to `sums` [token][32] of `count` tokens; kTokens where `whole`.
// `codes` are 8 bits wide and begin with unit `first`, which begins a block.
template <int unit, bool whole>
[[gnu::noinline]] void add_units(const ChunkScales& scales, const uint8_t* codes, int row, int64_t first, int64_t last,
                                 const QuantizedRows& x, int64_t token, int count, float* sums) {
  const bool minimums = scales.weight.has_minimums();
  alignas(64) int32_t products[2][kTokens * kLanes];
  Vec totals[kTokens];
  const auto each = [&](const auto& body) {
    if constexpr (whole) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) body(t);
    } else {
      for (int t = 0; t < count; ++t) body(t);
    }
  };
  each([&](int t) { totals[t] = load(sums + t * kPanel + row); });
  const auto begin = [&](int64_t u) {
    const int8_t* from = x.codes + token * x.row_size() + u * unit;
    const uint8_t* quads = codes + (u - first) * (unit / 4 * kQuadBytes) + row * 4;
    u % 2 == 0 ? multiply_even(from, x.row_size(), quads, products[0])
               : multiply_odd(from, x.row_size(), quads, products[1]);
  };
  begin(first);
  for (int64_t u = first; u < last; ++u) {
    if (u + 1 < last) begin(u + 1);
    const int64_t at = token * x.num_groups + u;
    const int32_t* from = products[u % 2];
    const Vec scale = scales.scale(u, row), minimum = minimums ? scales.minimum(u, row) : scale;
    each([&](int t) {
      const int64_t mine = at + t * x.num_groups;
      Ints sum = _mm512_load_si512(from + t * kLanes);
      if (!minimums) sum = _mm512_add_epi32(sum, all_ints(start_of<Codes::bits8>(scales.weight, x.code_sums[mine])));
      totals[t] = fma(to_floats(sum), scale * all(x.scales[mine]), totals[t]);
      if (minimums) totals[t] = fma(minimum, all(x.sums[mine]), totals[t]);
    });
  }
  each([&](int t) { store(sums + t * kPanel + row, totals[t]); });
}

TileShapes shapes_for(int tokens, int unit) {
  TileShapes shapes;
  for (int tile = 0; tile < 2; ++tile) shapes.set(tile, tokens, 64);
  for (int tile = 4; tile < 6; ++tile) shapes.set(tile, tokens, unit);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, unit / 4, 64);
  return shapes;
}

// Units up to `end` of a panel, from those of block `block` on, for tokens [first, last), all of whole tiles or all of one that is not.
template <int unit>
void multiply_chunk(const ChunkScales& scales, const uint8_t* codes, int64_t block, int64_t end, const QuantizedRows& x,
                    int64_t first, int64_t last, float* sums) {
  constexpr int64_t per_block = kBlockInputs / unit;
  for (int64_t token = first; token < last; token += kTokens, sums += kTokens * kPanel) {
    for (int row = 0; row < kPanel; row += kLanes) {
      const auto add = last - token < kTokens ? add_units<unit, false> : add_units<unit, true>;
      add(scales, codes, row, block * per_block, end, x, token, int(last - token), sums);
    }
  }
}

template <Codes width, int unit>
void multiply_codes(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t panel, int64_t first,
                    int64_t last) {
  alignas(64) float sums[kMostTiled * kPanel];
  alignas(64) uint8_t wide[kChunkBlocks * 1024];
  constexpr int64_t per_block = kBlockInputs / unit;
  ChunkScales numbers(weight);
  const Scales scales{weight, panel};
  const uint8_t* data = weight.data + panel * weight.panel_bytes();
  __builtin_memset(sums, 0, size_t(last - first) * kPanel * sizeof(float));
  for (int64_t block = 0; block < weight.blocks(); block += kChunkBlocks) {
    const int64_t stop = block + kChunkBlocks < weight.blocks() ? block + kChunkBlocks : weight.blocks();
    const uint8_t* codes = data + block * block_bytes(width);
    for (int64_t i = 0; i < (stop - block) * block_bytes(width); i += 64) {
      __builtin_prefetch(codes + kBlocksAhead * block_bytes(width) + i, 0, 2);
    }
    if (width != Codes::bits8) {
      widen_blocks<width>(weight, codes, stop - block, wide);
      codes = wide;
      written();
    }
    const int64_t end = stop * per_block < x.num_groups ? stop * per_block : x.num_groups;
    numbers.fill(scales, block * per_block, end);
    multiply_chunk<unit>(numbers, codes, block, end, x, first, last, sums);
  }
  for (int64_t token = first; token < last; ++token) {
    add_high<width, Codes::bits8, unit>(scales, data, x, token, sums + (token - first) * kPanel);
  }
  store_panel(sums, panel, first, last, out);
}

template <int unit>
void multiply_unit(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
                   int64_t first, int64_t last) {
  const Tiles tiles(shapes_for(last - first < kTokens ? int(last - first) : kTokens, unit));
  with_width(weight.codes, [&]<Codes width>() {
    for (int64_t panel = begin; panel < end; ++panel) multiply_codes<width, unit>(weight, x, out, panel, first, last);
  });
}

void fast(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
          int64_t first, int64_t last) {
  const auto multiply = weight.unit == 32 ? multiply_unit<32> : multiply_unit<16>;
  const int64_t rest = last - (last - first) % kTokens;
  if (rest > first) multiply(weight, x, out, begin, end, first, rest);
  if (last - rest >= kFewTokens) return multiply(weight, x, out, begin, end, rest, last);
  if (last > rest) avx512::int8.fast(weight, x, out, begin, end, rest, last);
}

void exact(const Int8Panels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first,
           int64_t last) {
  avx512::int8.exact(weight, x, out, begin, end, first, last);
}

}  // namespace

extern const Int8Kernels int8;
const Int8Kernels int8{kTokens, kMostTiled, fast, exact};

}  // namespace modulm::MODULM_ISA
