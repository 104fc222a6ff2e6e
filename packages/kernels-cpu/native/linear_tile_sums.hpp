// Sums that have left the tiles and are to be scaled: done beside the products of tiles that follow, for which it takes no
// time, as these leave all of the processor but the tiles idle. Included by kernels of the namespace `amx` only.
#pragma once

#include "linear_bf16_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

// to[token][32] = (before[token][32] +) sums[token][32] * scales[32], some tokens at each call.
class Scaled {
 public:
  // What tiles hold for `tokens` tokens goes to `sums` and is begun with; what is left of the last ones is done now.
  void begin(float* sums, const float* scales, const float* before, int64_t before_stride, float* to, int64_t stride,
             int64_t tokens) {
    finish();
    store_sums(sums, tokens > kTokens);
    written();
    sums_ = sums, scales_ = scales, before_ = before, before_stride_ = before_stride, to_ = to, stride_ = stride;
    left_ = tokens;
  }

  // The same with sums that are whole then. `spare` is for results of 32 tokens that are not in place.
  void begin(float* sums, const float* scales, const float* before, int64_t before_stride, const Results& results,
             float* spare) {
    if (results.in_place() != nullptr) {
      return begin(sums, scales, before, before_stride, results.in_place(), results.stride(), results.count());
    }
    begin(sums, scales, before, before_stride, spare, kPanel, results.count());
    finish();
    results.put(spare);
  }

  // So many calls will follow, or more.
  void expect(int64_t calls) { some_ = (left_ + calls - 1) / calls; }

  void operator()() { left_ > 0 ? take(std::min(left_, some_)) : void(); }
  void finish() { left_ > 0 ? take(left_) : void(); }

 private:
  void take(int64_t count) {
    before_ != nullptr ? take<true>(count) : take<false>(count);
    left_ -= count;
  }

  template <bool is_added>
  void take(int64_t count) {
    const Vec scales[2] = {load(scales_), load(scales_ + kLanes)};
    for (; count > 0; --count, sums_ += kPanel, to_ += stride_) {
      for (int v = 0; v < 2; ++v) {
        const Vec sum = load(sums_ + v * kLanes);
        store(to_ + v * kLanes, is_added ? fma(sum, scales[v], load(before_ + v * kLanes)) : sum * scales[v]);
      }
      if constexpr (is_added) before_ += before_stride_;
    }
  }

  const float *sums_ = nullptr, *scales_ = nullptr, *before_ = nullptr;
  float* to_ = nullptr;
  int64_t before_stride_ = 0, stride_ = 0, left_ = 0, some_ = 0;
};

}  // namespace
}  // namespace modulm::MODULM_ISA
