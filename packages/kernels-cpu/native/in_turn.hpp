// Loops whose counter the compiler knows in every turn, for instructions that want a constant. Included by kernels.
#pragma once

namespace modulm::MODULM_ISA {
namespace {

// A number known to the compiler that can be handed to a function.
template <int number>
struct Number {
  constexpr operator int() const { return number; }
};

// Calls body(Number<0>()) to body(Number<count - 1>()).
template <int count, class Body>
inline void quads_in_turn(const Body& body) {
  if constexpr (count > 0) {
    quads_in_turn<count - 1>(body);
    body(Number<count - 1>());
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
