// One row's token, and its likeliest ones: vector passes (`sampling.hpp`) leave few candidates, and these are selected by
// a radix sort that is carried only as far as it decides. No vocabulary is sorted.
//
// The order of tokens is by descending logit, equal ones by ascending id.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "sampling.hpp"

namespace modulm {

struct DrawOptions {
  float temperature, log_min_p;
  int64_t top_k;
  double top_p, number;
};

class RowSampler {
 public:
  explicit RowSampler(const SamplingKernels& kernels) : kernels_(&kernels) {}

  // Of which instruction set.
  const SamplingKernels& kernels() const { return *kernels_; }

  // The token, or -1 where the row's largest number is not finite.
  int64_t draw(const float* x, int64_t size, const DrawOptions& options) {
    int64_t at = 0;
    const float best = kernels_->largest(x, size, &at);
    if (!std::isfinite(best)) return -1;
    const Weighing by{best, options.temperature, options.log_min_p};
    const bool has_k = options.top_k > 0 && options.top_k < size;
    if (!has_k && options.top_p >= 1.0) return draw_from_all(x, size, by, options.number);
    double total;
    if (has_k) {
      gather(x, size, limit_of(x, size, options.top_k));
      weigh(x, by);
      make_items(x, true);
      total = cut(options.top_k);
    } else {
      total = sum_blocks(x, size, by);
      gather_share(x, size, by, options.top_p * total);
      make_items(x, true);
    }
    const Passed last = first_reaching([=](double sum) { return sum >= options.top_p * total; });
    return first_reaching([=](double sum) { return sum > options.number * last.sum; }).id;
  }

  // Writes the `count` likeliest tokens and their logits.
  void top(const float* x, int64_t size, int64_t count, int64_t* ids, float* values) {
    if (count <= 0) return;
    gather(x, size, limit_of(x, size, count));
    make_items(x, false);
    std::partial_sort(items_.begin(), items_.begin() + count, items_.end());
    for (int64_t i = 0; i < count; ++i) {
      ids[i] = int64_t(uint32_t(items_[size_t(i)].key));
      values[i] = x[ids[i]];
    }
  }

  // log(sum(exp(x - best)))
  double log_sum(const float* x, int64_t size, float best) {
    return std::log(sum_blocks(x, size, {best, 1.0f, -std::numeric_limits<float>::infinity()}));
  }

 private:
  struct Item {
    uint64_t key;  // descending logit, then id: ascending
    float weight;
    bool operator<(const Item& other) const { return key < other.key; }
  };
  struct Passed {
    int64_t id;
    double sum;
  };

  static uint64_t key_of(float value, int32_t id) {
    uint32_t bits;
    value += 0.0f;  // of two zeros neither comes first
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(~ascending) << 32 | uint32_t(id);
  }

  // A number that at least `count` numbers of the row reach, and few more.
  float limit_of(const float* x, int64_t size, int64_t count) {
    for (const int64_t block : {64, 16}) {
      if (count * block > size / 2) continue;
      maxima_.resize(size_t((size + block - 1) / block));
      kernels_->block_maxima(x, size, block, maxima_.data());
      const auto at = maxima_.begin() + (count - 1);
      std::nth_element(maxima_.begin(), at, maxima_.end(), std::greater<float>());
      return *at;
    }
    return -std::numeric_limits<float>::infinity();
  }

  // Find the places of the numbers >= limit.
  void gather(const float* x, int64_t size, float limit) {
    places_.resize(size_t(size));
    places_.resize(size_t(kernels_->collect(x, size, limit, places_.data())));
  }

  // Weigh the numbers found; returns their sum.
  double weigh(const float* x, const Weighing& by) {
    values_.resize(places_.size());
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = x[places_[i]];
    kernels_->weigh(values_.data(), int64_t(values_.size()), by, values_.data());
    double sum = 0.0;
    for (const float weight : values_) sum += double(weight);
    return sum;
  }

  // Find numbers that together weigh `share` for certain: the tail of a vocabulary rarely matters.
  void gather_share(const float* x, int64_t size, const Weighing& by, double share) {
    for (const float depth : {7.0f, 14.0f, std::numeric_limits<float>::infinity()}) {
      gather(x, size, by.best - depth * by.temperature);
      if (weigh(x, by) >= share) return;
    }
  }

  // Make candidates of the numbers found, with their weights if they have any.
  void make_items(const float* x, bool has_weights) {
    items_.resize(places_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i] = {key_of(x[places_[i]], places_[i]), has_weights ? values_[i] : 0.0f};
    }
  }

  // Leave the first `count` candidates; returns their weight, added up in the order of tokens.
  double cut(int64_t count) {
    if (size_t(count) < items_.size()) {
      std::nth_element(items_.begin(), items_.begin() + count, items_.end());
      items_.resize(size_t(count));
    }
    double sum = 0.0;
    for (const Item& item : items_) sum += double(item.weight);
    return sum;
  }

  double sum_blocks(const float* x, int64_t size, const Weighing& by) {
    sums_.resize(size_t((size + kSumBlock - 1) / kSumBlock));
    kernels_->block_sums(x, size, by, sums_.data());
    double total = 0.0;
    for (const double sum : sums_) total += sum;
    return total;
  }

  int64_t draw_from_all(const float* x, int64_t size, const Weighing& by, double number) {
    const double target = number * sum_blocks(x, size, by);
    double before = 0.0;
    size_t block = 0;
    size_t last = 0;  // that weighs anything
    for (; block < sums_.size(); ++block) {
      if (sums_[block] > 0.0) last = block;
      if (before + sums_[block] > target) break;
      before += sums_[block];
    }
    if (block == sums_.size()) block = last;  // cannot be, but for rounding
    const int64_t begin = int64_t(block) * kSumBlock, count = std::min(kSumBlock, size - begin);
    values_.resize(size_t(kSumBlock));
    kernels_->weigh(x + begin, count, by, values_.data());
    int64_t token = begin;
    for (int64_t i = 0; i < count; ++i) {
      if (values_[size_t(i)] <= 0.0f) continue;
      token = begin + i;
      before += double(values_[size_t(i)]);
      if (before > target) break;
    }
    return token;
  }

  // The first candidate, in the order of tokens, at which the cumulated weight passes; else the last that weighs
  // anything. Each round leaves only those candidates that begin with the bits of the one that is sought.
  template <class Passes>
  Passed first_reaching(const Passes& passes) {
    double before = 0.0;
    rest_ = items_;
    for (int shift = 56; shift >= 0 && rest_.size() > kFew; shift -= 8) {
      double sums[256] = {};
      for (const Item& item : rest_) sums[item.key >> shift & 255] += double(item.weight);
      size_t chosen = 256, last = 0;
      double before_last = before;
      for (size_t digit = 0; digit < 256; ++digit) {
        if (sums[digit] == 0.0) continue;
        if (passes(before + sums[digit])) {
          chosen = digit;
          break;
        }
        last = digit;
        before_last = before;
        before += sums[digit];
      }
      if (chosen == 256) {
        chosen = last;
        before = before_last;
      }
      rest_.erase(std::remove_if(rest_.begin(), rest_.end(),
                                 [=](const Item& item) { return (item.key >> shift & 255) != chosen; }),
                  rest_.end());
    }
    std::sort(rest_.begin(), rest_.end());
    Passed passed{0, before};
    for (const Item& item : rest_) {
      if (item.weight <= 0.0f) continue;
      passed = {int64_t(uint32_t(item.key)), passed.sum + double(item.weight)};
      if (passes(passed.sum)) break;
    }
    return passed;
  }

  static constexpr size_t kFew = 48;

  const SamplingKernels* kernels_;
  std::vector<float> maxima_, values_;
  std::vector<double> sums_;
  std::vector<int32_t> places_;
  std::vector<Item> items_, rest_;
};

}  // namespace modulm
