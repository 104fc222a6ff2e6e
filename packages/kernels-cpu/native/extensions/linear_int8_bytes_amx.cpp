// Codes of 8 bits in tiles of bytes, for up to 16 tokens: what `kernels/linear_int8.cpp` computes, bit by bit. Sums of a unit leave
// the tiles as integers, and are scaled and added up beside the products of the units that follow.
#include "linear_int8_scales.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kUnits = 4;   // whose sums wait: a power of two
constexpr int64_t kBehind = 3;  // units between the tiles of one and what is made of its sums

// What a thread works in.
struct alignas(64) ByteRoom {
  int32_t units[kUnits][kTokens * kLanes];
  int32_t starts[kTokens];
  float scales[kTokens], sums_of_x[kTokens];
  float sums[kTokens * kPanel];
};

TileShapes shapes_of_units(int64_t tokens, int64_t unit) {
  TileShapes shapes;
  for (int tile = 0; tile < 2; ++tile) {
    shapes.set(tile, int(tokens), 64);
    shapes.set(4 + tile, int(tokens), int(unit));
    shapes.set(6 + tile, int(unit) / 4, 64);
  }
  return shapes;
}

// 16 rows from `row` on of a panel, which lies at `codes`, by kCount tokens, to room.sums [token][32].
template <bool has_minimums, int unit, int kCount>
[[gnu::noinline]] void multiply_rows(const Scales& scales, const uint8_t* codes, int row, const QuantizedRows& x,
                                     __mmask16 there, ByteRoom& room) {
  const Ints zero = all_ints(start_of<Codes::bits8>(scales.weight, 1));
  const int64_t units = x.num_groups;
  const uint8_t* soon = codes + scales.weight.panel_bytes() + row / kLanes * (units * unit * kLanes);  // of the next panel, line by line
  const int8_t* inputs = x.codes;
  codes += 4 * row;
  Vec totals[kCount];
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) totals[t] = all(0.0f);
  for (int64_t number = 0; number < units + kBehind; ++number) {
    if (number < units) {
      for (int64_t line = 0; line < unit / 4; ++line, soon += 64) __builtin_prefetch(soon, 0, 2);
      if (number % 2 == 0) {
        _tile_zero(0);
        _tile_loadd(4, inputs, unit);
        _tile_loadd(6, codes, kQuadBytes);
        _tile_dpbsud(0, 4, 6);
      } else {
        _tile_zero(1);
        _tile_loadd(5, inputs, unit);
        _tile_loadd(7, codes, kQuadBytes);
        _tile_dpbsud(1, 5, 7);
      }
      codes += unit / 4 * kQuadBytes;
      inputs += kTokens * unit;
    }
    // A store waits for its products, and all that follows for the store: so those of the unit before.
    if (number > 0 && number <= units) {
      int32_t* const to = room.units[(number - 1) % kUnits];
      if (number % 2 != 0) {
        _tile_stored(0, to, 64);
      } else {
        _tile_stored(1, to, 64);
      }
    }
    written();
    if (number < kBehind) continue;
    const int64_t taken = number - kBehind, at = taken * kTokens, group = scales.group_of(taken);
    const int32_t* const products = room.units[taken % kUnits];
    // What is read again, one for all lanes. Of tokens that are not there it may be anything, and that may take long.
    store_ints(room.starts, _mm512_mullo_epi32(zero, load_ints(x.code_sums + at)));
    store(room.scales, _mm512_maskz_loadu_ps(there, x.scales + at));
    if (has_minimums) store(room.sums_of_x, _mm512_maskz_loadu_ps(there, x.sums + at));
    written();
    const Vec scale = scales.scale(group, row), minimum = has_minimums ? scales.minimum(group, row, scale) : scale;
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      const Ints sum = _mm512_add_epi32(load_ints(products + t * kLanes), all_ints(room.starts[t]));
      totals[t] = fma(to_floats(sum), scale * all(room.scales[t]), totals[t]);
      if (has_minimums) totals[t] = fma(minimum, all(room.sums_of_x[t]), totals[t]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) store(room.sums + t * kPanel + row, totals[t]);
}

template <int unit>
void multiply_unit(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
                   int64_t tokens) {
  ByteRoom& room = room_of_thread<ByteRoom>();
  const Tiles tiles(shapes_of_units(tokens, unit));
  const bool few = tokens <= kTokens / 2;
  const auto multiply = weight.has_minimums() ? few ? multiply_rows<true, unit, kTokens / 2> : multiply_rows<true, unit, kTokens>
                                              : few ? multiply_rows<false, unit, kTokens / 2> : multiply_rows<false, unit, kTokens>;
  for (int64_t panel = begin; panel < end; ++panel) {
    const Scales scales{weight, panel};
    const uint8_t* codes = weight.data + panel * weight.panel_bytes();
    for (int row = 0; row < kPanel; row += kLanes) multiply(scales, codes, row, x, __mmask16((1 << tokens) - 1), room);
    for (int64_t token = 0; token < tokens; ++token) {
      add_high<Codes::bits8, Codes::bits8, unit>(scales, codes, x, token, room.sums + token * kPanel);
    }
    store_panel(room.sums, panel, 0, tokens, out);
  }
}

// All tokens at once: the activations' tile is 16.
void fast(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end, int64_t,
          int64_t last) {
  const auto multiply = weight.unit == 32 ? multiply_unit<32> : multiply_unit<16>;
  multiply(weight, x, out, begin, end, last);
}

}  // namespace

extern const Int8Kernels int8_in_tiles;
const Int8Kernels int8_in_tiles{kTokens, kTokens, fast, nullptr};

}  // namespace modulm::MODULM_ISA
