// Products with 8-bit floats: their scales belong to sums, so that within a block of them the tile of plain numbers does,
// whatever it multiplies. Included by kernels only.
#pragma once

#include "linear_dense_tile.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Scales of a panel's rows, times `factor`.
inline void fill_scales(const DensePanels& weight, int64_t panel, int64_t column, float factor, float* to) {
  const BlockScales& scales = weight.scales;
  if (scales.by_row) {
    const int64_t at = (panel * scales.columns + column) * kPanelRows;
    if (scales.numbers != nullptr) {
      for (int r = 0; r < kPanel; ++r) to[r] = scales.numbers[at + r] * factor;
    } else {
      for (int r = 0; r < kPanel; ++r) to[r] = from_exponent(scales.exponents[at + r]) * factor;
    }
  } else {
    const Vec scale = all(scale_of(scales, panel, 0, column) * factor);
    for (int r = 0; r < kPanel; r += kLanes) store(to + r, scale);
  }
}

// totals[token][row] += sums[token][row] * scales[row], or = where there are none yet.
inline void add_scaled(const float* sums, const float* scales, int64_t tokens, bool is_first, float* totals) {
  for (int r = 0; r < kPanel; r += kLanes) {
    const Vec scale = load(scales + r);
    for (int64_t at = r; at < tokens * kPanel; at += kPanel) {
      store(totals + at, is_first ? load(sums + at) * scale : fma(load(sums + at), scale, load(totals + at)));
    }
  }
}

// Rows with numbers that are not finite, which are taken for others, give NaN.
inline void mark_nan_rows(const DensePanels& weight, int64_t panel, int64_t tokens, float* totals) {
  if (weight.nan_rows == nullptr || weight.nan_rows[panel] == 0) return;
  for (int64_t at = 0; at < tokens * kPanel; ++at) {
    if (weight.nan_rows[panel] >> at % kPanel & 1) totals[at] = __builtin_nanf("");
  }
}

// Words [begin, end) of a row, at most `most`, that lie in one of the row's `columns` blocks of scales, and in one chunk
// where `most` is one.
struct Span {
  int64_t begin, end, column;
  bool ends_block;

  Span(int64_t from, int64_t columns, int64_t block, const Activations& x, int64_t most) : begin(from) {
    if (columns == 1) block = x.words();
    column = from / block;
    const int64_t block_end = (column + 1) * block < x.words() ? (column + 1) * block : x.words();
    end = (from / most + 1) * most < block_end ? (from / most + 1) * most : block_end;
    ends_block = end == block_end;
  }
};

// As `multiply_panels` of plain numbers. `source(panel, word, count)` returns where so many words of all rows lie;
// `factor` makes up for what it makes of weights.
template <Element element, class Source>
inline void multiply_scaled(Source& source, const DensePanels& weight, float factor, const Activations& x,
                            const Output& out, int64_t begin, int64_t end, int64_t first, int64_t last) {
  const int64_t block = weight.scales.inputs / x.inputs_per_word;
  alignas(64) float sums[kMostTokens * kPanel], totals[kMostTokens * kPanel], scales[kPanel];
  const int64_t tokens = last - first;
  for (int64_t panel = begin; panel < end; ++panel) {
    __builtin_memset(sums, 0, size_t(tokens) * kPanel * sizeof(float));
    for (int64_t word = 0; word < x.words();) {
      const Span span(word, weight.scales.columns, block, x, kChunk);
      const uint8_t* weights = source(panel, word, span.end - word);
      for (int64_t token = first; token < last; token += kTile) {
        const int count = last - token < kTile ? int(last - token) : kTile;
        tile<element>(count, weights, (span.end - word + 1) / 2, x.at(word / kChunk, token) + word % kChunk,
                      sums + (token - first) * kPanel);
      }
      word = span.end;
      if (!span.ends_block) continue;
      fill_scales(weight, panel, span.column, factor, scales);
      add_scaled(sums, scales, tokens, span.column == 0, totals);
      __builtin_memset(sums, 0, size_t(tokens) * kPanel * sizeof(float));
    }
    mark_nan_rows(weight, panel, tokens, totals);
    store_panel(totals, panel, first, last, out);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
