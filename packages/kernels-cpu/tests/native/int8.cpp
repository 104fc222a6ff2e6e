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
  std::vector<uint8_t> multiples, low_multiples;  // of scales and minimums, where they are such
  std::vector<uint16_t> coarse;                   // [rows, coarse groups], of both
  Bytes data, packed_scales, packed_minimums, packed_coarse;
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
    if (weight.kind != Zero::points && random.below(3) == 0) choose_steps(random);
    for (int64_t i = 0; i < weight.rows * weight.inputs; ++i) codes.push_back(uint8_t(random.below(limit)));
    for (int64_t i = 0; i < weight.rows * weight.groups(); ++i) {
      scales.push_back(float(1 + random.below(60)) / 64.0f);
      minimums.push_back(float(random.below(100) - 50));
      points.push_back(uint8_t(random.below(limit)));
    }
    if (weight.steps.span > 0) make_multiples(random);
    x = random.numbers(tokens * weight.inputs);
    pack();
  }

  void choose_steps(Random& random) {
    weight.inputs = kChunkBlocks * kBlockInputs * (1 + random.below(2));
    weight.group = 1 + random.below(2);
    weight.steps.span = kChunkBlocks * kBlockInputs / weight.unit / weight.group;
    if (weight.kind == Zero::minimums && random.below(2) == 0) weight.steps.multiples = Multiples::both;
    weight.steps.unit = 0.25f;
  }

  bool in_nibbles() const { return weight.steps.multiples == Multiples::both; }

  void make_multiples(Random& random) {
    const int64_t columns = weight.coarse_groups();
    for (int64_t i = 0; i < weight.rows * columns; ++i) coarse.push_back(to_f16(float(random.below(9) - 4) / 64.0f));
    const auto multiple = [&](std::vector<uint8_t>& to, float factor) {
      const int number = in_nibbles() ? random.below(16) : random.below(256) - 128;
      to.push_back(uint8_t(number));
      return factor * weight.steps.unit * float(number);
    };
    for (int64_t at = 0; at < weight.rows * weight.groups(); ++at) {
      const int64_t row = at / weight.groups(), column = at % weight.groups() / weight.steps.span;
      const float factor = from_f16(coarse[size_t(row * columns + column)]);
      scales[size_t(at)] = multiple(multiples, factor);
      minimums[size_t(at)] = multiple(low_multiples, factor);
      if (in_nibbles()) multiples.back() = uint8_t(multiples.back() | low_multiples.back() << 4);
    }
  }

  void pack() {
    const int64_t panels = panels_of(weight.rows), size = weight.scale_at(panels, 0);
    data = Bytes(panels * weight.panel_bytes());
    packed_scales = Bytes(size);
    packed_minimums = Bytes(size);
    const std::vector<uint8_t> rows_of_codes = stored_codes();
    const int64_t stride = int64_t(rows_of_codes.size()) / weight.rows;
    for (int64_t panel = 0; panel < panels; ++panel) {
      pack_codes(weight, {rows_of_codes.data(), stride, false}, panel, data.data() + panel * weight.panel_bytes());
      weight.steps.span > 0 ? pack_multiples(panel) : pack_scales(panel);
    }
    weight.data = data.data();
    weight.scales = packed_scales.data();
    weight.minimums = in_nibbles() ? weight.scales : packed_minimums.data();
    weight.steps.scales = weight.steps.minimums = packed_coarse.data();
  }

  // Two to a byte where they have no more than 4 bits.
  std::vector<uint8_t> stored_codes() const {
    if (bits_of(weight.codes) > 4) return codes;
    const int64_t stride = (weight.inputs + 1) / 2;
    std::vector<uint8_t> pairs(size_t(weight.rows * stride));
    for (int64_t i = 0; i < weight.rows * weight.inputs; ++i) {
      const int64_t row = i / weight.inputs, input = i % weight.inputs;
      pairs[size_t(row * stride + input / 2)] |= uint8_t(codes[size_t(i)] << (input % 2 * 4));
    }
    return pairs;
  }

  void pack_scales(int64_t panel) {
    const int64_t rows = weight.rows, groups = weight.groups();
    uint8_t* low = packed_minimums.data();
    pack_numbers<float>(scales.data(), rows, groups, panel, packed_scales.data());
    if (weight.kind == Zero::minimums) pack_numbers<float>(minimums.data(), rows, groups, panel, low);
    if (weight.kind == Zero::points) pack_numbers<uint8_t>(points.data(), rows, groups, panel, low);
  }

  void pack_multiples(int64_t panel) {
    const int64_t rows = weight.rows, groups = weight.groups();
    pack_numbers<uint8_t>(multiples.data(), rows, groups, panel, packed_scales.data());
    pack_numbers<uint8_t>(low_multiples.data(), rows, groups, panel, packed_minimums.data());
    if (panel == 0) packed_coarse = Bytes(panels_of(rows) * weight.coarse_groups() * kPanelRows * 2);
    pack_numbers<uint16_t>(coarse.data(), rows, weight.coarse_groups(), panel, packed_coarse.data());
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
    dense(isa).tokens.pack(x.data(), Float::f32, weight.inputs, 0, tokens, to);
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
