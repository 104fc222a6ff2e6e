// The vectors of `kernels/linear_q4.cpp` in plain C++: arrays of 8 lanes that a compiler may or may not vectorise. It
// runs everywhere and gives the same bits as the others; it is not fast.
#pragma once

#include "linear_q4.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTokens = 4;
constexpr int kBlocksAtOnce = 1;

struct Floats {
  float lane[kLanes];
};
struct Ints {
  int32_t lane[kLanes];
};
struct Nibbles {
  const uint8_t* bytes;
};

template <class Function>
inline Floats each(const Function& function) {
  Floats out;
  for (int r = 0; r < kLanes; ++r) out.lane[r] = function(r);
  return out;
}

inline Floats zero() { return Floats{}; }
inline Floats broadcast(float value) {
  return each([=](int) { return value; });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return each([&](int r) { return a.lane[r] * b.lane[r]; });
}
inline Floats add(const Floats& a, const Floats& b) {
  return each([&](int r) { return a.lane[r] + b.lane[r]; });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return each([&](int r) { return __builtin_fmaf(a.lane[r], b.lane[r], c.lane[r]); });
}
inline Floats to_floats(const Ints& a) {
  return each([&](int r) { return float(a.lane[r]); });
}
inline void store(float* to, const Floats& a) { __builtin_memcpy(to, a.lane, sizeof(a.lane)); }

inline Floats load_scales(const uint8_t* from, ScaleType type) {
  return each([=](int r) { return number_at(from, type, r); });
}

inline Floats load_bytes(const uint8_t* from) {
  return each([=](int r) { return float(from[r]); });
}

inline Nibbles load_nibbles(const uint8_t* from) { return {from}; }

inline int nibble(const uint8_t* bytes, int lane, int high, int byte) {
  return bytes[4 * lane + byte] >> (4 * high) & 15;
}

// Input `byte` of the 4 low (`high` 0) or high nibbles of each lane.
inline Floats code(Nibbles nibbles, int high, int byte) {
  return each([=](int r) { return float(nibble(nibbles.bytes, r, high, byte)); });
}

struct ValueTable {
  const float* values;
  explicit ValueTable(const float* from) : values(from) {}
  Floats operator()(Nibbles nibbles, int high, int byte) const {
    return each([=, this](int r) { return values[nibble(nibbles.bytes, r, high, byte)]; });
  }
};

// For each of T tokens, the sum of a unit's products in every row.
template <Q4Kind kKind>
struct UnitSums {
  const Q4View& weight;

  explicit UnitSums(const Q4View& weight) : weight(weight) {}

  template <int kUnit, int T>
  inline void operator()(const uint8_t* nibbles, const int8_t* x, const int32_t* code_sums, Ints* sums) const {
    for (int t = 0; t < T; ++t) {
      const int32_t start = kKind == Q4Kind::offset ? -weight.offset * code_sums[t] : 0;
      for (int r = 0; r < kLanes; ++r) sums[t].lane[r] = start;
    }
    for (int quad = 0; quad < kUnit / 4; ++quad, x += 4) {
      for (int t = 0; t < T; ++t) add_quad(nibbles + quad / 2 * 4 * kLanes, quad % 2, x + t * kUnit, sums[t]);
    }
  }

  // The same of one quad set apart, which lies in the low (`high` 0) or high nibbles.
  inline Ints quad_products(const uint8_t* nibbles, int high, const HighQuad& x) const {
    Ints sum;
    for (int r = 0; r < kLanes; ++r) sum.lane[r] = kKind == Q4Kind::offset ? -weight.offset * x.sum : 0;
    add_quad(nibbles, high, x.codes, sum);
    return sum;
  }

 private:
  inline void add_quad(const uint8_t* nibbles, int high, const int8_t* x, Ints& sum) const {
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < kLanes; ++r) {
        const int code = nibble(nibbles, r, high, i);
        sum.lane[r] += (kKind == Q4Kind::codebook ? weight.steps[code] : code) * x[i];
      }
    }
  }
};

}  // namespace
}  // namespace modulm::MODULM_ISA
