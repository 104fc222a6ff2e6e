// From a family of kernels to the one compiled for this processor.
//
// A family is a struct of function pointers. Its header says MODULM_FAMILY(Struct, instance); each file in `kernels/`
// defines `extern const Struct instance` in its own namespace; callers ask `instance()`, tests `instance(isa)`, where
// `can_run(isa)` must hold. What an instruction set adds for a few products only lies in `extensions/`, and a family says
// itself where it takes that.
#pragma once

#include "features.hpp"

#if defined(__x86_64__)
#define MODULM_WIDE(Struct, instance)              \
  namespace avx2 { extern const Struct instance; } \
  namespace avx512 { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance)      \
  case Isa::avx2: return avx2::instance; \
  case Isa::avx512_bf16:                 \
  case Isa::avx512: return avx512::instance;
#elif defined(__aarch64__)
#define MODULM_WIDE(Struct, instance) namespace neon { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance) case Isa::neon: return neon::instance;
#else
#define MODULM_WIDE(Struct, instance)
#define MODULM_WIDE_CASES(instance)
#endif

#define MODULM_FAMILY(Struct, instance)               \
  namespace generic { extern const Struct instance; } \
  MODULM_WIDE(Struct, instance)                       \
  inline const Struct& instance(Isa which) {          \
    switch (which) {                                  \
      MODULM_WIDE_CASES(instance)                     \
      default: return generic::instance;              \
    }                                                 \
  }                                                   \
  inline const Struct& instance() { return instance(isa()); }
