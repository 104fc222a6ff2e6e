#include "features.hpp"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace modulm {
namespace {

#if defined(__x86_64__)
// Not among the names that every compiler's `__builtin_cpu_supports` knows.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1u) != 0;
}
#elif defined(__aarch64__)
bool has_dot_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every 64-bit Mac with a processor of its own has it
#endif
}
#endif

Isa best() {
  for (Isa one : kIsas) {
    if (can_run(one)) return one;
  }
  throw std::runtime_error(
      "The kernels of modulm-kernels-cpu cannot run here: they need an x86-64 processor with SSE4.2 and POPCNT "
      "(x86-64-v2, made since 2009). Do without them: --kernels torch.");
}

Isa asked_for(const std::string& name) {
  std::string there;
  for (Isa one : kIsas) {
    if (!can_run(one)) continue;
    if (name == name_of(one)) return one;
    there += there.empty() ? name_of(one) : std::string(", ") + name_of(one);
  }
  throw std::runtime_error("MODULM_CPU_ISA='" + name + "' cannot run here. There are: " + there +
                           ". Unset it to choose automatically.");
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avxvnni: return "avxvnni";
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
    case Isa::generic: return __builtin_cpu_supports("x86-64-v2");
    case Isa::avx2: return avx2;
    case Isa::avxvnni: return avx2 && has_avx_vnni();
    case Isa::avx512: return avx512;
    case Isa::avx512_bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
    default: return false;
  }
#elif defined(__aarch64__)
  return isa == Isa::generic || (isa == Isa::neon && has_dot_product());
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
    const Isa here = best();
    const char* asked = std::getenv("MODULM_CPU_ISA");
    return asked == nullptr || *asked == '\0' ? here : asked_for(asked);
  }();
  return chosen;
}

}  // namespace modulm
