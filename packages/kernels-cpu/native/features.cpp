#include "features.hpp"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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

// Tiles for bytes and bfloat16. The system keeps their registers for a process that asked, once, for all its threads.
bool has_amx() {
#if defined(__linux__)
  static const bool granted = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
    if ((~d & (bf16 | tile | int8)) != 0) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
#else
  return false;
#endif
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
    case Isa::amx: return "amx";
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
    case Isa::amx: return avx512 && __builtin_cpu_supports("avx512bf16") && has_amx();
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
