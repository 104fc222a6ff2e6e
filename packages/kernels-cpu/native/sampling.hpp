// Passes over one row of logits, float32: what sampling does with every number of a vocabulary.
//
// A row is `size` numbers; -inf is forbidden. What is done with the few numbers that are left is in `sampling_row.hpp`.
// Results do not depend on what else is computed, and sums are in double.
#pragma once

#include <cstdint>

#include "dispatch.hpp"

namespace modulm {

constexpr int64_t kSumBlock = 1024;

// weight(x) = exp((x - best) / temperature) in float, 0 where (x - best) / temperature < least.
struct Weighing {
  float best, temperature, least;
};

struct SamplingKernels {
  // The largest number, and in `at` the first place where it is; not a number where one of them is +inf or not one,
  // and -inf when all are: `at` means nothing then.
  float (*largest)(const float* x, int64_t size, int64_t* at);
  // sums[b] = sum of weight(x[i]) over block b of kSumBlock numbers.
  void (*block_sums)(const float* x, int64_t size, const Weighing& by, double* sums);
  // weights[i] = weight(x[i])
  void (*weigh)(const float* x, int64_t size, const Weighing& by, float* weights);
  // maxima[b] = the largest of block b of `block` numbers, a multiple of 16; the last may be short.
  void (*block_maxima)(const float* x, int64_t size, int64_t block, float* maxima);
  // Write the places of numbers >= limit to `places`, ascending; returns how many. No number may be NaN.
  int64_t (*collect)(const float* x, int64_t size, float limit, int32_t* places);
  // How many numbers are > value.
  int64_t (*count_above)(const float* x, int64_t size, float value);
  // x[i] = -inf where bit i % 32 of word i / 32 is 0.
  void (*mask)(float* x, int64_t size, const uint32_t* words);
};

MODULM_FAMILY(SamplingKernels, sampling)

}  // namespace modulm
