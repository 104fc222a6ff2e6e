// What this processor can do, and which of the compiled instruction sets is used.
#pragma once

#include <string>

namespace modulm {

enum class Isa { generic, avx2, avxvnni, avx512, avx512_bf16, amx, neon };

// All of them, the best first: on any processor only some can run.
inline constexpr Isa kIsas[] = {Isa::amx, Isa::avx512_bf16, Isa::avx512, Isa::avxvnni, Isa::avx2, Isa::neon,
                                Isa::generic};

// The best instruction set this processor and this build have, or the one named in MODULM_CPU_ISA when it can run here.
// Throws std::runtime_error when that name is unknown or cannot run, or when not even `generic` can. Decided once per
// process.
Isa isa();

const char* name_of(Isa isa);

// The instruction set of that name, for tests. Throws std::invalid_argument when it is unknown or cannot run here; an
// empty name means `isa()`.
Isa isa_named(const std::string& name);

// Whether this build has kernels for `isa` and this processor runs them. `generic` needs x86-64-v2 on x86, and nothing
// beyond the architecture elsewhere.
bool can_run(Isa isa);

}  // namespace modulm
