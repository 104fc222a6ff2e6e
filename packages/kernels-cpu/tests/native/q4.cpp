// Products with 4-bit weights: against float64, and bit by bit between instruction sets.
#include "linear_q4.hpp"

#include "quantized.hpp"

namespace modulm {
namespace {

// A random weight as a checkpoint has it, and its values.
struct Problem {
  Q4View view{};
  std::vector<uint8_t> codes;
  std::vector<float> scales, minimums;
  int64_t tokens;
  std::vector<float> x;

  explicit Problem(Random& random) : tokens(1 + random.below(19)) {
    view.kind = Q4Kind(random.below(3));
    view.scale_type = ScaleType(random.below(view.kind == Q4Kind::minimums ? 2 : 4));
    view.out_features = 1 + random.below(70);
    view.unit = random.below(2) == 0 ? 16 : 32;
    view.units_per_group = 1 + random.below(3);
    view.groups = 1 + random.below(5);
    view.in_features = view.units() * view.unit;
    if (view.groups == 1) view.in_features -= 2 * random.below(int(view.unit / 2));  // a whole row
    view.offset = random.below(16);
    view.step = 0.01f;
    for (int i = 0; i < 16; ++i) {
      view.steps[i] = int8_t(random.below(255) - 127);
      view.values[i] = float(view.steps[i]) * view.step;
    }
    for (int64_t i = 0; i < view.out_features * view.in_features / 2; ++i) codes.push_back(uint8_t(random.below(256)));
    for (int64_t i = 0; i < view.out_features * view.groups; ++i) {
      const float scale = float(1 + random.below(60)) / 64.0f;  // exact in float16, and then in fewer bits
      const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
      const bool is_power = view.scale_type == ScaleType::exponent, is_byte = view.scale_type == ScaleType::f16_byte;
      scales.push_back(__builtin_bit_cast(float, is_power ? bits & 0xff800000u : is_byte ? bits & 0xfff00000u : bits));
      minimums.push_back(float(random.below(100) - 50) / 64.0f);
    }
    x = random.numbers(tokens * view.in_features);
  }

  double value(int64_t row, int64_t input) const {
    const int code = codes[size_t((row * view.in_features + input) / 2)] >> (input % 2 * 4) & 15;
    const size_t at = size_t(row * view.groups + input / (view.unit * view.units_per_group));
    if (view.kind == Q4Kind::codebook) return double(scales[at]) * double(view.values[code]);
    if (view.kind == Q4Kind::offset) return double(scales[at]) * (code - view.offset);
    return double(scales[at]) * code + double(minimums[at]);
  }
};

// What one instruction set makes of a problem.
struct Results {
  Bytes memory;
  Q4View view;
  std::vector<float> fast, exact, rows;
  Quantized quantized;

  Results(const Problem& problem, Isa isa)
      : view(problem.view), quantized(isa, problem.x, problem.tokens, view.in_features, view.unit, tile(problem, isa)) {
    view.lanes = linear_q4(isa).lanes;
    memory = Bytes(view.blocks() * view.block_bytes());
    view.data = memory.data();
    pack_q4(isa).pack(view, {problem.codes.data(), problem.scales.data(), problem.minimums.data(), Float::f32}, 0,
                      view.blocks());
    const auto size = size_t(problem.tokens * view.out_features);
    fast.resize(size);
    exact.resize(size);
    const auto out = [&](std::vector<float>& to) { return Q4Out{to.data(), Float::f32, view.out_features}; };
    linear_q4(isa).fast(view, quantized.rows, 0, view.blocks(), 0, problem.tokens, out(fast), {});

    const int64_t padded = view.units() * view.unit;
    std::vector<float> widened(size_t(problem.tokens * padded));
    pack_q4(isa).widen(problem.x.data(), Float::f32, view.in_features, 0, problem.tokens, view.in_features, padded,
                       widened.data());
    linear_q4(isa).exact(view, widened.data(), 0, view.blocks(), 0, problem.tokens, out(exact));

    std::vector<int64_t> index;
    for (int64_t r = 0; r < view.out_features; ++r) index.push_back(r);
    rows.resize(size_t(view.out_features * view.in_features));
    pack_q4(isa).rows(view, index.data(), 0, view.out_features, {rows.data(), Float::f32, view.in_features});
  }

  static int64_t tile(const Problem& problem, Isa isa) {  // as `Q4Weight::linear_fast` chooses it
    int64_t tile = linear_q4(isa).max_tokens;
    while (tile / 2 >= problem.tokens) tile /= 2;
    return tile;
  }
};

void check_one(const Problem& problem, const Isas& isas, Report& report, int round) {
  const Results first(problem, isas.front());
  for (const Isa isa : isas) {
    const Results results(problem, isa);
    check_quantized(results.quantized, first.quantized, problem.x, problem.tokens, problem.view.in_features, report,
                    isa, round);
    report.same_bits(results.fast, first.fast, "`fast` has the same bits", isa, round);
    report.same_bits(results.exact, first.exact, "`exact` has the same bits", isa, round);
    report.same_bits(results.rows, first.rows, "`rows` has the same bits", isa, round);
    const auto value = [&](int64_t row, int64_t input) { return problem.value(row, input); };
    const Product product{problem.tokens, problem.view.out_features, problem.view.in_features, 16};
    product.check(results.fast, value, [&](int64_t t) { return results.quantized.values(t); }, report, isa, round);
    product.check(results.exact, value, [&](int64_t t) { return problem.x.data() + t * product.inputs; }, report, isa,
                  round);
    for (int64_t i = 0; i < int64_t(results.rows.size()); ++i) {
      const int64_t row = i / problem.view.in_features, input = i % problem.view.in_features;
      report.near(results.rows[size_t(i)], problem.value(row, input), 16, 1e-6, "`rows`", isa, round);
    }
  }
}

const Registered kCheck([](const Isas& isas) {
  Report report("4-bit products");
  Random random(1);
  for (int round = 0; round < 40; ++round) check_one(Problem(random), isas, report, round);
  return report.close();
});

}  // namespace
}  // namespace modulm
