// What touches each number once, against float64.
#include "elementwise.hpp"

#include "check.hpp"

namespace modulm {
namespace {

void check_norm(Random& random, Report& report, Isa isa, int round) {
  const int64_t rows = 1 + random.below(4), size = 1 + random.below(70);
  const std::vector<float> x = random.numbers(rows * size), weight = random.numbers(size);
  std::vector<float> out(x.size());
  elementwise(isa).rms_norm(x.data(), weight.data(), out.data(), 0, rows, size, 1e-5f, 1.0f);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += double(x[size_t(r * size + i)]) * x[size_t(r * size + i)];
    const double root = std::sqrt(squares / double(size) + double(1e-5f));
    for (int64_t i = 0; i < size; ++i) {
      const double expected = x[size_t(r * size + i)] / root * (1.0 + weight[size_t(i)]);
      report.near(out[size_t(r * size + i)], expected, std::abs(expected) + 1e-3, 3e-6, "rms_norm", isa, round);
    }
  }
}

double activated(double x, Activation act) {
  switch (act) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu_tanh: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    default: return x > 0 ? x : 0;
  }
}

void check_gate(Random& random, Report& report, Isa isa, int round) {
  const int64_t rows = 1 + random.below(4), size = 1 + random.below(40);
  const Activation act = Activation(random.below(4));
  const std::vector<float> x = random.numbers(rows * 2 * size);
  std::vector<float> out(size_t(rows * size));
  elementwise(isa).gated_activation(x.data(), 2 * size, out.data(), size, 0, rows, size, act);
  for (int64_t i = 0; i < rows * size; ++i) {
    const size_t at = size_t(i / size * 2 * size + i % size);
    const double up = x[at + size_t(size)], expected = activated(x[at], act) * up;
    report.near(out[size_t(i)], expected, std::abs(expected) + std::abs(up), 2e-6, "gated_activation", isa, round);
  }
}

void check_rotary(Random& random, Report& report, Isa isa, int round) {
  const int64_t tokens = 1 + random.below(3), heads = 1 + random.below(3), half = 1 + random.below(21);
  const int64_t size = 2 * half + random.below(5);
  const std::vector<float> before = random.numbers(tokens * heads * size);
  std::vector<float> x = before, cos, sin;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < 2 * half; ++i) {
      cos.push_back(float(std::cos(double(t * 7 + i % half))));
      sin.push_back(float(std::sin(double(t * 7 + i % half))));
    }
  }
  elementwise(isa).rotary({x.data(), heads, size, heads * size, size}, cos.data(), sin.data(), 2 * half, 0, tokens);
  for (int64_t at = 0; at < tokens * heads * size; ++at) {
    const int64_t d = at % size, table = at / size / heads * 2 * half + d % half;
    double expected = before[size_t(at)], other = 0;
    if (d < 2 * half) {
      other = d < half ? -before[size_t(at + half)] : before[size_t(at - half)];
      expected = expected * cos[size_t(table)] + other * sin[size_t(table)];
    }
    report.near(x[size_t(at)], expected, std::abs(before[size_t(at)]) + std::abs(other), 2e-7, "rotary", isa, round);
  }
}

void check_rest(Random& random, Report& report, Isa isa, int round) {
  const int64_t size = 1 + random.below(50);
  const float cap = random.below(2) == 0 ? 0.0f : 3.0f;
  const std::vector<float> a = random.numbers(size), b = random.numbers(size);
  std::vector<float> sum(a.size()), capped = a;
  elementwise(isa).add(a.data(), b.data(), sum.data(), 0, size);
  elementwise(isa).soft_cap(capped.data(), 0.5f, cap, 0, size);
  for (size_t i = 0; i < a.size(); ++i) {
    report.expect(sum[i] == a[i] + b[i], "add", isa, round);
    const double expected = cap == 0.0f ? a[i] / 0.5 : cap * std::tanh(a[i] / 0.5 / cap);
    report.near(capped[i], expected, std::abs(expected) + 1e-6, 1e-6, "soft_cap", isa, round);
  }
}

const Registered kCheck([](const Isas& isas) {
  Report report("norms, gates, rotary positions");
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    for (const Isa isa : isas) {
      check_norm(random, report, isa, round);
      check_gate(random, report, isa, round);
      check_rotary(random, report, isa, round);
      check_rest(random, report, isa, round);
    }
  }
  return report.close();
});

}  // namespace
}  // namespace modulm
