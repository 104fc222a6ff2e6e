// What gates do to the numbers beside them.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "elementwise.hpp"
#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

inline Vec swigluoai_of(Vec gate, Vec up) {
  const Vec alpha = all(1.702f), limit = all(7.0f);
  const Vec low = smaller(limit, gate);  // the number second, so that one that is none stays
  return silu_of(low * alpha) / alpha * (all(1.0f) + larger(all(-7.0f), smaller(limit, up)));
}

// body(product) where product(gate, up) is what `function` makes of both.
template <class Body>
inline void with_gates(Activation function, const Body& body) {
  switch (function) {
    case Activation::silu: return body([](Vec gate, Vec up) { return silu_of(gate) * up; });
    case Activation::gelu_tanh: return body([](Vec gate, Vec up) { return gelu_tanh_of(gate) * up; });
    case Activation::gelu: return body([](Vec gate, Vec up) { return gelu_of(gate) * up; });
    case Activation::relu: return body([](Vec gate, Vec up) { return relu_of(gate) * up; });
    case Activation::swigluoai: return body([](Vec gate, Vec up) { return swigluoai_of(gate, up); });
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
