// For the checks of products: activations quantised by an instruction set and read back, and the product in float64.
#pragma once

#include <memory>

#include "check.hpp"
#include "linear_dense_memory.hpp"
#include "quantize_activations.hpp"

namespace modulm {

struct Quantized {
  Bytes memory;
  QuantizedRows rows;

  Quantized(Isa isa, const std::vector<float>& x, int64_t tokens, int64_t size, int64_t unit, int64_t tile)
      : memory(QuantizedRows::bytes_for(tokens, size, unit, tile)),
        rows(QuantizedRows::in(memory.data(), tokens, size, unit, tile)) {
    std::memset(memory.data(), 0, size_t(memory.size()));
    activations(isa).quantize_rows(x.data(), Float::f32, size, 0, tokens, size, rows);
  }

  // What the codes of a token stand for.
  std::vector<double> values(int64_t token) const {
    std::vector<double> all(size_t(rows.row_size()));
    for (int64_t g = 0; g < rows.num_groups; ++g) {
      const int64_t at = rows.at(token, g);
      for (int64_t i = 0; i < rows.group; ++i) {
        all[size_t(g * rows.group + i)] = double(rows.codes[at * rows.group + i]) * double(rows.scales[at]);
      }
    }
    const HighQuad* high = rows.high + token * rows.num_groups;
    for (const HighQuad* end = high + rows.num_high[token]; high < end; ++high) {
      for (int i = 0; i < 4; ++i) {
        all[size_t(high->unit * rows.group + high->quad * 4 + i)] += double(high->codes[i]) * double(high->scale);
      }
    }
    return all;
  }
};

// Whether two have the same bits, however they lie in tiles.
inline bool are_equal(const QuantizedRows& a, const QuantizedRows& b, int64_t token) {
  for (int64_t g = 0; g < a.num_groups; ++g) {
    const int64_t i = a.at(token, g), j = b.at(token, g);
    if (std::memcmp(a.codes + i * a.group, b.codes + j * b.group, size_t(a.group)) != 0 ||
        std::memcmp(a.scales + i, b.scales + j, 4) != 0 || std::memcmp(a.sums + i, b.sums + j, 4) != 0 ||
        a.code_sums[i] != b.code_sums[j]) {
      return false;
    }
  }
  const int64_t first = token * a.num_groups, bytes = a.num_high[token] * int64_t(sizeof(HighQuad));
  return a.num_high[token] == b.num_high[token] && std::memcmp(a.high + first, b.high + first, size_t(bytes)) == 0;
}

// The codes are x to half a step, and the same bits as those of `first`.
inline void check_quantized(const Quantized& one, const Quantized& first, const std::vector<float>& x, int64_t tokens,
                            int64_t size, Report& report, Isa isa, int round) {
  for (int64_t t = 0; t < tokens; ++t) {
    report.expect(are_equal(one.rows, first.rows, t), "activations have the same bits", isa, round);
    const std::vector<double> values = one.values(t);
    for (int64_t i = 0; i < size; ++i) {
      const double step = one.rows.scales[one.rows.at(t, i / one.rows.group)];
      report.near(values[size_t(i)], x[size_t(t * size + i)], step, 0.501, "activations are near x", isa, round);
    }
  }
}

// A matrix product in float64, and how near to it float32 has to come.
struct Product {
  int64_t tokens, rows, inputs;
  double slack;  // codes times scales that cancel are as large as this

  // out[t, r] is the sum over i of value(r, i) * activations(t)[i].
  template <class Value, class Activations>
  void check(const std::vector<float>& out, const Value& value, const Activations& activations, Report& report, Isa isa,
             int round) const {
    for (int64_t t = 0; t < tokens; ++t) {
      const auto x = activations(t);
      for (int64_t r = 0; r < rows; ++r) {
        double expected = 0, size = 0;
        for (int64_t i = 0; i < inputs; ++i) {
          expected += value(r, i) * double(x[size_t(i)]);
          size += (std::abs(value(r, i)) + slack) * std::abs(double(x[size_t(i)]));
        }
        report.near(out[size_t(t * rows + r)], expected, size, 1e-6, "the product", isa, round);
      }
    }
  }
};

}  // namespace modulm
