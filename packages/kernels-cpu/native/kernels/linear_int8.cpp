#include "linear_int8.hpp"

#include "linear_dense_tile.hpp"
#include "linear_int8_scales.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kMostQuantized = 32 * kIntTile;
constexpr int64_t kBytesAsked = 8 << 10;  // how far ahead of their use codes are asked for: products hide the waiting

// `stored` is how codes lie, `range` how large they can be: codes of fewer bits that were widened stay small.
//
// Adds unit `unit` to the sums of `tokens` tokens: an exact sum of integers, scaled; then minimum * sum of x. What lies
// `away` is asked for, line by line: many at once would wait for each other.
template <Codes stored, Codes range, int first_quad, int quads, int tokens, int vectors>
inline void add_unit(const ChunkScales& scales, const uint8_t* block, int row, const QuantizedRows& x, int64_t token,
                     int64_t unit, int64_t away, Vec (&totals)[tokens][vectors]) {
  const int64_t at = token * x.num_groups + unit;
  const bool minimums = scales.weight.has_minimums();
  int32_t starts[tokens];
  for (int t = 0; t < tokens; ++t) starts[t] = start_of<range>(scales.weight, x.code_sums[at + t * x.num_groups]);
  Ints sums[tokens][vectors];
  const auto codes = [&](auto quad, int vector) {
    constexpr int64_t bytes = block_bytes(stored);
    const int64_t line = ((first_quad + int(quad)) * (kPanel / kLanes) + row / kLanes + vector) * 64;
    if (away > 0 && line < bytes) __builtin_prefetch(block + away + line, 0, 2);
    return quad_codes<stored, first_quad + int(quad)>(scales.weight, block, row + vector * kLanes);
  };
  unit_sums<range, quads, tokens>(codes, x.codes + at * x.group, x.row_size(), starts, sums);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const Vec scale = scales.scale(unit, row + v * kLanes);
    const Vec minimum = minimums ? scales.minimum(unit, row + v * kLanes) : scale;
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) {
      totals[t][v] = fma(to_floats(sums[t][v]), scale * all(x.scales[at + t * x.num_groups]), totals[t][v]);
      if (minimums) totals[t][v] = fma(minimum, all(x.sums[at + t * x.num_groups]), totals[t][v]);
    }
  }
}

// Blocks [first, last) of a panel, whose codes begin at `codes`, times `tokens` tokens. Not inlined: compilers take minutes over
// one function that holds a dozen of these.
template <Codes stored, Codes range, int unit, int tokens>
[[gnu::noinline]] void tile_blocks(const ChunkScales& scales, const uint8_t* codes, int64_t first, int64_t last,
                                   const QuantizedRows& x, int64_t token, int64_t away, float* sums) {
  constexpr int vectors = int_vectors_for(tokens);
  for (int row = 0; row < kPanel; row += vectors * kLanes) {
    Vec totals[tokens][vectors];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) totals[t][v] = load(sums + t * kPanel + row + v * kLanes);
    }
    for (int64_t block = first; block < last; ++block) {
      const uint8_t* from = codes + (block - first) * block_bytes(stored);
      if constexpr (unit == 32) {
        add_unit<stored, range, 0, 8, tokens>(scales, from, row, x, token, block, away, totals);
      } else {
        add_unit<stored, range, 0, 4, tokens>(scales, from, row, x, token, block * 2, away, totals);
        if (block * 2 + 1 < x.num_groups) {
          add_unit<stored, range, 4, 4, tokens>(scales, from, row, x, token, block * 2 + 1, away, totals);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) store(sums + t * kPanel + row + v * kLanes, totals[t][v]);
    }
  }
}

template <Codes stored, Codes range, int unit, int tokens = kIntTile>
inline void tile_some(int count, const ChunkScales& scales, const uint8_t* codes, int64_t first, int64_t last,
                      const QuantizedRows& x, int64_t token, int64_t away, float* sums) {
  if constexpr (tokens > 0) {
    if (count != tokens) {
      return tile_some<stored, range, unit, tokens - 1>(count, scales, codes, first, last, x, token, away, sums);
    }
    tile_blocks<stored, range, unit, tokens>(scales, codes, first, last, x, token, away, sums);
  }
}

// One chunk of a panel for tokens [first, last). `stored` codes lie among the weights, and what follows is asked for,
// unless the chunk was widened.
template <Codes stored, Codes range, int unit>
void multiply_chunk(const ChunkScales& scales, const uint8_t* codes, int64_t block, int64_t stop, const QuantizedRows& x,
                    int64_t first, int64_t last, bool is_widened, float* sums) {
  for (int64_t token = first; token < last; token += kIntTile) {
    const int count = last - token < kIntTile ? int(last - token) : kIntTile;
    const int64_t away = token == first && !is_widened ? kBytesAsked : 0;
    tile_some<stored, range, unit>(count, scales, codes, block, stop, x, token, away, sums + (token - first) * kPanel);
  }
}

// Blocks [first, last) of a panel of vectors, which begin at `from`, times one token: products are added up while the next
// vectors are looked up, which a block of 8 bits in memory would keep apart.
template <int length, int signs, int planes, int unit>
[[gnu::noinline]] void multiply_vectors(const ChunkScales& scales, const uint8_t* from, int64_t first, int64_t last,
                                        const QuantizedRows& x, int64_t token, float* sums) {
  constexpr int vectors = kPanel / kLanes, units = int(kBlockInputs) / unit;
  const Vectors kind = known<length, signs, planes>(scales.weight.vectors);
  Vec totals[vectors];
  for (int v = 0; v < vectors; ++v) totals[v] = load(sums + v * kLanes);
  for (int64_t block = first; block < last; ++block, from += kind.bytes()) {
    for (int number = 0; number < units && block * units + number < x.num_groups; ++number) {
      const int64_t at = token * x.num_groups + block * units + number;
      const int8_t* codes = x.codes + at * unit;
      Ints products[vectors];
      for (int v = 0; v < vectors; ++v) products[v] = all_ints(start_of<Codes::bits8>(scales.weight, x.code_sums[at]));
      for (int eight = 0; eight < unit / 8; ++eight) {
        const Eight stored(kind, from, number * (unit / 8) + eight);
        ask_ahead(stored);
        for (int v = 0; v < vectors; ++v) {
          Ints low, high;
          eight_codes<length, signs, planes>(stored, v * kLanes, low, high);
          products[v] = add_products<Codes::bits8>(products[v], low, four_inputs(codes + eight * 8));
          products[v] = add_products<Codes::bits8>(products[v], high, four_inputs(codes + eight * 8 + 4));
        }
      }
      for (int v = 0; v < vectors; ++v) {
        const Vec factor = scales.scale(block * units + number, v * kLanes) * all(x.scales[at]);
        totals[v] = fma(to_floats(products[v]), factor, totals[v]);
      }
    }
  }
  for (int v = 0; v < vectors; ++v) store(sums + v * kLanes, totals[v]);
}

template <Codes width, int unit>
void multiply_codes(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
                    int64_t first, int64_t last) {
  constexpr int64_t per_block = kBlockInputs / unit;
  alignas(64) float sums[kMostQuantized * kPanel];
  alignas(64) uint8_t wide[kChunkBlocks * 1024];
  ChunkScales numbers(weight);
  // Where the range does not matter, code for it is made once.
  constexpr bool is_wide = !kSignedBytes || in_table(width) || width == Codes::vectors;
  constexpr Codes range = is_wide ? Codes::bits8 : width < Codes::bits5 ? Codes::bits5 : width;
  constexpr bool are_vectors = width == Codes::vectors;
  const bool widen = are_vectors || (width != Codes::bits8 && last - first > 2 * kIntTile);
  for (int64_t panel = begin; panel < end; ++panel) {
    const Scales scales{weight, panel};
    __builtin_memset(sums, 0, size_t(last - first) * kPanel * sizeof(float));
    for (int64_t block = 0; block < weight.blocks(); block += kChunkBlocks) {
      const int64_t stop = block + kChunkBlocks < weight.blocks() ? block + kChunkBlocks : weight.blocks();
      const uint8_t* codes = weight.data + panel * weight.panel_bytes() + block * weight.bytes_of_block();
      numbers.fill(scales, block * per_block, stop * per_block < x.num_groups ? stop * per_block : x.num_groups);
      if (are_vectors && last - first == 1) {
        with_vectors(weight.vectors, [&]<int length, int signs, int planes>() {
          multiply_vectors<length, signs, planes, unit>(numbers, codes, block, stop, x, first, sums);
        });
      } else if (widen) {
        widen_blocks<width>(weight, codes, stop - block, wide);
        multiply_chunk<Codes::bits8, range, unit>(numbers, wide, block, stop, x, first, last, true, sums);
      } else if constexpr (!are_vectors) {
        multiply_chunk<width, range, unit>(numbers, codes, block, stop, x, first, last, false, sums);
      }
    }
    for (int64_t token = first; token < last; ++token) {
      const uint8_t* codes = weight.data + panel * weight.panel_bytes();
      add_high<width, range, unit>(scales, codes, x, token, sums + (token - first) * kPanel);
    }
    store_panel(sums, panel, first, last, out);
  }
}

void fast(const Int8Panels& weight, const QuantizedRows& x, const Output& out, int64_t begin, int64_t end,
          int64_t first, int64_t last) {
  with_width(weight.codes, [&]<Codes width>() {
    const auto multiply = weight.unit == 32 ? multiply_codes<width, 32> : multiply_codes<width, 16>;
    multiply(weight, x, out, begin, end, first, last);
  });
}

// Dequantised weights, a chunk of the dense kernels at a time, rounded as `GroupedInt` and `ChannelInt8` say.
template <Codes width>
struct Dequantized {
  static constexpr Codes unpacked = width == Codes::vectors ? Codes::bits8 : width;
  const Int8Panels& weight;
  alignas(64) float values[kChunk * kPanelRows];

  const uint8_t* operator()(int64_t panel, int64_t chunk) {
    const int64_t first = chunk * (kChunk / kBlockInputs), left = weight.blocks() - first;
    const Scales scales{weight, panel};
    for (int64_t block = 0; block < kChunk / kBlockInputs && block < left; ++block) {
      const uint8_t* from = weight.data + panel * weight.panel_bytes() + (first + block) * weight.bytes_of_block();
      alignas(64) uint8_t wide[width == Codes::vectors ? 1024 : 64];
      if constexpr (width == Codes::vectors) widen_blocks<width>(weight, from, 1, wide), from = wide;
      quads_in_turn<8>([&](auto quad) {
        const int64_t input = (first + block) * kBlockInputs + quad * 4;
        if (input >= weight.inputs) return;
        for (int row = 0; row < kPanel; row += kLanes) {
          fill(scales, scales.group_of(input / weight.unit), quad_codes<unpacked, int(quad)>(weight, from, row), row,
               values + (block * kBlockInputs + quad * 4) * kPanelRows + row);
        }
      });
    }
    return reinterpret_cast<const uint8_t*>(values);
  }

  // Four inputs of kLanes rows.
  void fill(const Scales& scales, int64_t group, Ints codes, int row, float* to) const {
    const Vec scale = scales.scale(group, row);
    const Vec minimum = weight.has_minimums() ? scales.minimum(group, row, scale) : scale * all(float(-weight.zero));
    quads_in_turn<4>([&](auto byte) {
      const Ints code = both(shifted_right<byte * 8>(codes), all_ints(255));
      const Vec value = weight.kind == Zero::shift ? to_floats(minus(code, all_ints(weight.zero))) * scale
                                                   : to_floats(code) * scale + minimum;
      store(to + byte * kPanelRows, value);
    });
  }
};

void exact(const Int8Panels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first,
           int64_t last) {
  with_width(weight.codes, [&]<Codes width>() {
    Dequantized<width> source{weight, {}};
    multiply_panels<Element::f32>(source, x, out, begin, end, first, last);
  });
}

}  // namespace

extern const Int8Kernels int8;
const Int8Kernels int8{kIntTile, kMostQuantized < kMostTokens ? kMostQuantized : kMostTokens, fast, exact};

}  // namespace modulm::MODULM_ISA
