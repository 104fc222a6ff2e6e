// What touches each number of the hidden state once: norms, gated activations, rotary positions, residuals.
//
// Pointers are float32, row-major; rows are independent, so callers split them over threads. `out` may be the input.
#pragma once

#include <cstdint>

#include "dispatch.hpp"

namespace modulm {

// The last is no function of the gate alone: see `Activation` in interfaces/program.py.
enum class Activation { silu, gelu_tanh, gelu, relu, swigluoai };

// Numbers of heads, token t's head h at data + t * token_stride + h * head_stride.
struct Heads {
  float* data;
  int64_t num_heads, head_size, token_stride, head_stride;
};

struct ElementwiseKernels {
  // out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * (offset + weight); rows [begin, end) of `size` numbers each.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t begin, int64_t end, int64_t size, float eps,
                   float offset);
  // out[r, i] = act(x[r, i]) * x[r, size + i], or what swigluoai is; rows of both are strides apart. `out` must not be x.
  void (*gated_activation)(const float* x, int64_t x_stride, float* out, int64_t out_stride, int64_t begin, int64_t end,
                           int64_t size, Activation act);
  // Numbers i and i + width / 2 of every head turn by the token's angle, i < width / 2: tables [tokens, width] whose
  // two halves are alike. What is behind `width` stays.
  void (*rotary)(const Heads& heads, const float* cos, const float* sin, int64_t width, int64_t begin, int64_t end);
  // out[i] = a[i] + b[i]
  void (*add)(const float* a, const float* b, float* out, int64_t begin, int64_t end);
  // x[i] = x[i] / divisor, then cap * tanh(x[i] / cap) unless cap is 0.
  void (*soft_cap)(float* x, float divisor, float cap, int64_t begin, int64_t end);
};

MODULM_FAMILY(ElementwiseKernels, elementwise)

}  // namespace modulm
