// One `bind_*` per family; `bindings.cpp` joins them. Bindings check shapes, dtypes and contiguity of every array and
// refuse with std::invalid_argument (ValueError in Python); kernels trust them.
#pragma once

#include <nanobind/nanobind.h>

#include "pool.hpp"

namespace modulm {

void bind_attention(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_linear_dense(nanobind::module_& m);
void bind_linear_int8(nanobind::module_& m);
void bind_linear_q4(nanobind::module_& m);
void bind_packed_weight(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_reordered(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);

}  // namespace modulm
