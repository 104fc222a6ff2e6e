#include "features.hpp"

#include <cstdlib>
#include <stdexcept>

namespace modulm {

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::neon: return "neon";
    default: return "generic";
  }
}

bool can_run(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also asks the system whether it keeps the wide registers
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case Isa::generic: return true;
    case Isa::avx2: return avx2;
    case Isa::avx512: return avx512;
    case Isa::avx512_bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
    default: return false;
  }
#elif defined(__aarch64__)
  return isa == Isa::generic || isa == Isa::neon;
#else
  return isa == Isa::generic;
#endif
}

Isa isa_named(const std::string& name) {
  if (name.empty()) return isa();
  for (Isa one : kIsas) {
    if (name == name_of(one) && can_run(one)) return one;
  }
  throw std::invalid_argument("Instruction set '" + name + "' cannot run here.");
}

Isa isa() {
  static const Isa chosen = [] {
    if (const char* asked = std::getenv("MODULM_CPU_ISA"); asked != nullptr && *asked != '\0') {
      std::string there;
      for (Isa one : kIsas) {
        if (!can_run(one)) continue;
        if (asked == std::string(name_of(one))) return one;
        there += there.empty() ? name_of(one) : std::string(", ") + name_of(one);
      }
      throw std::runtime_error("MODULM_CPU_ISA='" + std::string(asked) + "' cannot run here. There are: " + there +
                               ". Unset it to choose automatically.");
    }
    for (Isa one : kIsas) {
      if (can_run(one)) return one;
    }
    return Isa::generic;
  }();
  return chosen;
}

}  // namespace modulm
