#include "elementwise.hpp"

#include <math.h>

namespace modulm::MODULM_ISA {
namespace {

void rms_norm(const float* x, const float* weight, float* out, int64_t begin, int64_t end, int64_t size, float eps) {
  for (int64_t row = begin; row < end; ++row) {
    const float* from = x + row * size;
    float* to = out + row * size;
    double sum = 0.0;
    for (int64_t i = 0; i < size; ++i) sum += double(from[i]) * double(from[i]);
    const float factor = float(1.0 / sqrt(sum / double(size) + double(eps)));
    for (int64_t i = 0; i < size; ++i) to[i] = from[i] * factor * weight[i];
  }
}

}  // namespace

extern const ElementwiseKernels elementwise;
const ElementwiseKernels elementwise{rms_norm};

}  // namespace modulm::MODULM_ISA
