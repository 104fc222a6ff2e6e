// What touches each number of the hidden state once: norms, gated activations, rotary positions, residuals.
//
// Pointers are float32, row-major, without padding; rows are independent, so callers split them over threads.
#pragma once

#include <cstdint>

#include "dispatch.hpp"

namespace modulm {

struct ElementwiseKernels {
  // out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight; rows [begin, end) of `size` numbers each.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t begin, int64_t end, int64_t size, float eps);
};

MODULM_FAMILY(ElementwiseKernels, elementwise)

}  // namespace modulm
