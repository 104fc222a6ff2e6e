// From a family of kernels to the one compiled for this processor.
//
// A family is a struct of function pointers. Its header says MODULM_FAMILY(Struct, instance); each file in `kernels/`
// defines `extern const Struct instance` in its own namespace; callers ask `instance()`, tests `instance(isa)`, where
// `can_run(isa)` must hold. AVX-VNNI adds one instruction to AVX2, which only products of bytes use: they say
// MODULM_BYTE_FAMILY, and the others are AVX2's there. What AVX-512 BF16 adds lies in `extensions/`, and the family that
// takes it says so itself; all others are AVX-512's there.
#pragma once

#include "features.hpp"

#if defined(__x86_64__)
#define MODULM_WIDE(Struct, instance, vnni)        \
  namespace avx2 { extern const Struct instance; } \
  namespace vnni { extern const Struct instance; } \
  namespace avx512 { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance, vnni)          \
  case Isa::avx2: return avx2::instance;           \
  case Isa::avxvnni: return vnni::instance;        \
  case Isa::avx512_bf16:                           \
  case Isa::avx512: return avx512::instance;
#elif defined(__aarch64__)
#define MODULM_WIDE(Struct, instance, vnni) namespace neon { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance, vnni) case Isa::neon: return neon::instance;
#else
#define MODULM_WIDE(Struct, instance, vnni)
#define MODULM_WIDE_CASES(instance, vnni)
#endif

#define MODULM_FAMILY_OF(Struct, instance, vnni)      \
  namespace generic { extern const Struct instance; } \
  MODULM_WIDE(Struct, instance, vnni)                 \
  inline const Struct& instance(Isa which) {          \
    switch (which) {                                  \
      MODULM_WIDE_CASES(instance, vnni)               \
      default: return generic::instance;              \
    }                                                 \
  }                                                   \
  inline const Struct& instance() { return instance(isa()); }

#define MODULM_FAMILY(Struct, instance) MODULM_FAMILY_OF(Struct, instance, avx2)
#define MODULM_BYTE_FAMILY(Struct, instance) MODULM_FAMILY_OF(Struct, instance, avxvnni)
