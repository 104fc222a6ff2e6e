// What the checks beside this file share: random numbers, a count of failures, and which instruction sets are compared.
//
// They are compiled without Python, so that an emulator can run them for a processor that is not here; see
// integration_tests/test_kernels_emulated.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "features.hpp"

namespace modulm {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}

  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state_ >> 33);
  }
  int below(int count) { return int(bits() % uint32_t(count)); }
  // Between -1 and 1, and now and then much larger, as activations of language models are.
  float number() { return (float(below(20001)) / 10000.0f - 1.0f) * (below(97) == 0 ? 60.0f : 1.0f); }
  std::vector<float> numbers(int64_t count) {
    std::vector<float> all(static_cast<size_t>(count));
    for (float& one : all) one = number();
    return all;
  }

 private:
  uint64_t state_;
};

// Counts failures and prints the first few.
class Report {
 public:
  explicit Report(const char* subject) : subject_(subject) {}

  void expect(bool holds, const char* what, Isa isa, int round) {
    ++checks_;
    if (!holds && ++failures_ <= 20) std::printf("FAILED %s: %s, %s, round %d\n", subject_, what, name_of(isa), round);
  }
  // |value - expected| <= tolerance * size, where `size` is what rounding errors are measured by.
  void near(double value, double expected, double size, double tolerance, const char* what, Isa isa, int round) {
    expect(std::abs(value - expected) <= tolerance * size, what, isa, round);
  }
  template <class T>
  void same_bits(const std::vector<T>& a, const std::vector<T>& b, const char* what, Isa isa, int round) {
    expect(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0, what, isa, round);
  }
  // Prints the sum of all; returns the failures.
  int close() const {
    std::printf("%s: %ld checks, %d failures\n", subject_, checks_, failures_);
    return failures_;
  }

 private:
  const char* subject_;
  long checks_ = 0;
  int failures_ = 0;
};

using Isas = std::vector<Isa>;

// A check returns the number of its failures. Those of the files that are linked run, one after another.
using Check = int (*)(const Isas& isas);

struct Registered {
  explicit Registered(Check check) { all().push_back(check); }
  static std::vector<Check>& all();
};

}  // namespace modulm
