// Activations rounded to bfloat16, two neighbours in a word, as weights in bfloat16 lie. Included by kernels only.
#pragma once

#include "linear_dense_tile.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kInputs = 2 * kChunk;  // of a chunk

// Rounds to nearest even; what float32 holds only as a subnormal becomes 0.
void round_row(const float* from, float* to) {
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    store(to + i, (Vec)_mm512_cvtne2ps_pbh(load(from + 2 * i + kLanes), load(from + 2 * i)));
  }
}

void pack_tokens(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, const Activations& to) {
  alignas(64) float wide[kInputs] = {};
  for (int64_t chunk = 0; chunk < chunks_of(to.words()); ++chunk) {
    const int64_t input = chunk * kInputs, left = to.inputs - input, count = left < kInputs ? left : kInputs;
    if (count < kInputs) __builtin_memset(wide, 0, sizeof(wide));
    for (int64_t token = begin; token < end; ++token) {
      widen_row(x, type, token * stride + input, count, wide);
      round_row(wide, const_cast<float*>(to.at(chunk, token)));
    }
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
