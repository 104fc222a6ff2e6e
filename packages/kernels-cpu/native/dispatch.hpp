// From a family of kernels to the one compiled for this processor.
//
// A family is a struct of function pointers. Its header says MODULM_FAMILY(Struct, instance); each file in `kernels/`
// defines `extern const Struct instance` in its own namespace; callers ask `instance()`, tests `instance(isa)`, where
// `can_run(isa)` must hold. AVX-VNNI adds one instruction to AVX2, which only products of bytes use: they say
// MODULM_BYTE_FAMILY, and the others are AVX2's there. What AVX-512 BF16 and AMX add lies in `extensions/`: attention has
// tiles, weights say themselves which of their products go there, and all else is AVX-512's.
#pragma once

#include "features.hpp"

#if defined(__x86_64__)
#define MODULM_WIDE(Struct, instance, vnni, tiles)   \
  namespace avx2 { extern const Struct instance; }   \
  namespace vnni { extern const Struct instance; }   \
  namespace avx512 { extern const Struct instance; } \
  namespace tiles { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance, vnni, tiles)     \
  case Isa::avx2: return avx2::instance;             \
  case Isa::avxvnni: return vnni::instance;          \
  case Isa::avx512_bf16:                             \
  case Isa::avx512: return avx512::instance;         \
  case Isa::amx: return tiles::instance;
#elif defined(__aarch64__)
#define MODULM_WIDE(Struct, instance, vnni, tiles) namespace neon { extern const Struct instance; }
#define MODULM_WIDE_CASES(instance, vnni, tiles) case Isa::neon: return neon::instance;
#else
#define MODULM_WIDE(Struct, instance, vnni, tiles)
#define MODULM_WIDE_CASES(instance, vnni, tiles)
#endif

#define MODULM_FAMILY_OF(Struct, instance, vnni, tiles) \
  namespace generic { extern const Struct instance; }   \
  MODULM_WIDE(Struct, instance, vnni, tiles)            \
  inline const Struct& instance(Isa which) {            \
    switch (which) {                                    \
      MODULM_WIDE_CASES(instance, vnni, tiles)          \
      default: return generic::instance;                \
    }                                                   \
  }                                                     \
  inline const Struct& instance() { return instance(isa()); }

#define MODULM_FAMILY(Struct, instance) MODULM_FAMILY_OF(Struct, instance, avx2, avx512)
#define MODULM_BYTE_FAMILY(Struct, instance) MODULM_FAMILY_OF(Struct, instance, avxvnni, avx512)
