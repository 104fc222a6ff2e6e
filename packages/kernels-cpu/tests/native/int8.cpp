// Products with weights of 2 to 8 bits: against float64, and bit by bit between instruction sets that fuse
// multiplication and addition (x86-64-v2 does not).
#include "linear_int8.hpp"

#include "linear_int8_pack.hpp"
#include "quantized.hpp"

namespace modulm {
namespace {

#if defined(__x86_64__)
bool fuses(Isa isa) { return isa != Isa::generic; }
#else
bool fuses(Isa) { return true; }
#endif

struct Problem {
  Int8Panels weight{};
  std::vector<uint8_t> codes, points;  // [rows, inputs], [rows, groups]
  std::vector<float> scales, minimums, x;
  Bytes data, packed_scales, packed_minimums;
  int64_t tokens;

  explicit Problem(Random& random) : tokens(1 + random.below(23)) {
    constexpr Codes all[] = {Codes::bits2, Codes::bits3, Codes::bits4,  Codes::bits5,
                             Codes::bits6, Codes::bits8, Codes::table3, Codes::table4};
    weight.codes = all[random.below(8)];
    weight.kind = Zero(random.below(4));
    for (uint8_t& byte : weight.table) byte = uint8_t(random.below(256));
    const int limit = 1 << bits_of(weight.codes);
    weight.zero = random.below(limit);
    weight.rows = 1 + random.below(90);
    weight.unit = random.below(2) == 0 ? 16 : 32;
    weight.group = 1 + random.below(3);
    weight.inputs = 1 + random.below(400);
    weight.scale_type = Float::f32;
    for (int64_t i = 0; i < weight.rows * weight.inputs; ++i) codes.push_back(uint8_t(random.below(limit)));
    for (int64_t i = 0; i < weight.rows * weight.groups(); ++i) {
      scales.push_back(float(1 + random.below(60)) / 64.0f);
      minimums.push_back(float(random.below(100) - 50));
      points.push_back(uint8_t(random.below(limit)));
    }
    x = random.numbers(tokens * weight.inputs);
    pack();
  }

  void pack() {
    const int64_t panels = panels_of(weight.rows), size = weight.scale_at(panels, 0);
    data = Bytes(panels * weight.panel_bytes());
    packed_scales = Bytes(size);
    packed_minimums = Bytes(size);
    for (int64_t panel = 0; panel < panels; ++panel) {
      pack_codes(weight, {codes.data(), weight.inputs, false, false}, panel,
                 data.data() + panel * weight.panel_bytes());
      const int64_t rows = weight.rows, groups = weight.groups();
      uint8_t* low = packed_minimums.data();
      pack_numbers<float>(scales.data(), rows, groups, panel, packed_scales.data());
      if (weight.kind == Zero::minimums) pack_numbers<float>(minimums.data(), rows, groups, panel, low);
      if (weight.kind == Zero::points) pack_numbers<uint8_t>(points.data(), rows, groups, panel, low);
    }
    weight.data = data.data();
    weight.scales = packed_scales.data();
    weight.minimums = packed_minimums.data();
  }

  double value(int64_t row, int64_t input) const {
    const uint8_t stored = codes[size_t(row * weight.inputs + input)];
    const double code = in_table(weight.codes) ? weight.table[stored] : stored;
    const size_t at = size_t(row * weight.groups() + input / weight.unit / weight.group);
    if (weight.kind == Zero::minimums) return code * double(scales[at]) + double(minimums[at]);
    return (code - (weight.kind == Zero::points ? points[at] : weight.zero)) * double(scales[at]);
  }

  std::vector<float> product(Isa isa, const Quantized& quantized) const {
    std::vector<float> out(size_t(tokens * weight.rows));
    const int64_t most = int8(isa).most_tokens;
    for (int64_t first = 0; first < tokens; first += most) {
      int8(isa).fast(weight, quantized.rows, {out.data(), Float::f32, weight.rows, weight.rows}, 0,
                     panels_of(weight.rows), first, first + most < tokens ? first + most : tokens);
    }
    return out;
  }

  std::vector<float> exact_product(Isa isa) const {
    std::vector<float> out(size_t(tokens * weight.rows));
    const Bytes memory(Activations::bytes_for(tokens, weight.inputs));
    const Activations to = Activations::in(memory.data(), tokens, weight.inputs);
    dense(isa).pack_tokens(x.data(), Float::f32, weight.inputs, 0, tokens, to);
    int8(isa).exact(weight, to, {out.data(), Float::f32, weight.rows, weight.rows}, 0, panels_of(weight.rows), 0,
                    tokens);
    return out;
  }
};

void check_one(const Problem& problem, const Isas& isas, Report& report, int round) {
  const Int8Panels& weight = problem.weight;
  const Quantized first(isas.front(), problem.x, problem.tokens, weight.inputs, weight.unit, 1);
  const auto expected = problem.product(isas.front(), first), exact = problem.exact_product(isas.front());
  for (const Isa isa : isas) {
    const Quantized quantized(isa, problem.x, problem.tokens, weight.inputs, weight.unit, 1);
    check_quantized(quantized, first, problem.x, problem.tokens, weight.inputs, report, isa, round);
    const auto fast = problem.product(isa, quantized), plain = problem.exact_product(isa);
    if (fuses(isa) == fuses(isas.front())) {
      report.same_bits(fast, expected, "`fast` has the same bits", isa, round);
      report.same_bits(plain, exact, "`exact` has the same bits", isa, round);
    }
    const auto value = [&](int64_t row, int64_t input) { return problem.value(row, input); };
    const Product product{problem.tokens, weight.rows, weight.inputs, 256};
    product.check(fast, value, [&](int64_t t) { return quantized.values(t); }, report, isa, round);
    product.check(plain, value, [&](int64_t t) { return problem.x.data() + t * weight.inputs; }, report, isa, round);
  }
}

const Registered kCheck([](const Isas& isas) {
  Report report("products of 2 to 8 bits");
  Random random(2);
  for (int round = 0; round < 40; ++round) check_one(Problem(random), isas, report, round);
  return report.close();
});

}  // namespace
}  // namespace modulm
