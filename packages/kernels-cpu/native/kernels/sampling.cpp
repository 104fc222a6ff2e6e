#include "sampling.hpp"

#include <float.h>
#include <math.h>

#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

// One bit for each lane: whether a < b. `Wide` adds vectors in double.
#if defined(__AVX512F__)

inline uint32_t bits_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

struct Wide {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void add(Vec x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
  double sum() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

#elif defined(__AVX2__)

inline uint32_t bits_less(Vec a, Vec b) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ))); }

struct Wide {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  void add(Vec x) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
  double sum() const {
    double numbers[4];
    _mm256_storeu_pd(numbers, _mm256_add_pd(low, high));
    return (numbers[0] + numbers[1]) + (numbers[2] + numbers[3]);
  }
};

#else

inline uint32_t bits_less(Vec a, Vec b) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t(a[i] < b[i]) << i;
  return bits;
}

struct Wide {
  double numbers[kLanes] = {};
  void add(Vec x) {
    for (int i = 0; i < kLanes; ++i) numbers[i] += double(x[i]);
  }
  double sum() const { return (numbers[0] + numbers[1]) + (numbers[2] + numbers[3]); }
};

#endif

constexpr uint32_t kAllLanes = uint32_t((uint64_t(1) << kLanes) - 1);
constexpr int64_t kArgmaxBlock = 512;

// The last `count` numbers of a row, the other lanes `other`.
inline Vec load_last(const float* p, int64_t count, float other) {
  return keep_lanes(load_first(p, count), 0, int(count), all(other));
}

float largest(const float* x, int64_t size, int64_t* at) {
  float best = -INFINITY;
  int64_t best_block = 0;
  Vec spoilt = all(0.0f);  // becomes NaN with the first +inf or NaN: 0 times it is NaN
  for (int64_t begin = 0; begin < size; begin += kArgmaxBlock) {
    const int64_t end = begin + kArgmaxBlock < size ? begin + kArgmaxBlock : size;
    Vec tops[2] = {all(-INFINITY), all(-INFINITY)};
    const auto take = [&](Vec numbers, Vec& top) {
      top = larger(numbers, top);
      spoilt = fma(larger(all(-FLT_MAX), numbers), all(0.0f), spoilt);
    };
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      take(load(x + i), tops[0]);
      take(load(x + i + kLanes), tops[1]);
    }
    for (; i + kLanes <= end; i += kLanes) take(load(x + i), tops[0]);
    if (i < end) take(load_last(x + i, end - i, -INFINITY), tops[0]);
    const float top = largest_of(larger(tops[0], tops[1]));
    if (top > best) {
      best = top;
      best_block = begin;
    }
  }
  const float check = sum_of(spoilt);
  if (check != check) return check;
  int64_t place = best_block;
  while (place < size - 1 && x[place] != best) ++place;
  *at = place;
  return best;
}

// Weights by a product where nothing is dropped; where something is, what decides is the quotient as others have it.
struct Weigher {
  Vec best, factor, temperature, least;
  bool drops;

  explicit Weigher(const Weighing& by)
      : best(all(by.best)), temperature(all(by.temperature)), least(all(by.least)), drops(by.least > -INFINITY) {
    const float exact = kLog2e / by.temperature;
    factor = all(exact < FLT_MAX ? exact : FLT_MAX);
  }

  Vec operator()(Vec x) const {
    const Vec below = x - best;
    const Vec weight = exp2_of(below * factor);
    return drops ? where_less(below / temperature, least, all(0.0f), weight) : weight;
  }
};

void block_sums(const float* x, int64_t size, const Weighing& by, double* sums) {
  const Weigher weight_of(by);
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < size ? begin + kSumBlock : size;
    Wide sum, other;  // apart, so that additions overlap
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      sum.add(weight_of(load(x + i)));
      other.add(weight_of(load(x + i + kLanes)));
    }
    for (; i + kLanes <= end; i += kLanes) sum.add(weight_of(load(x + i)));
    if (i < end) sum.add(weight_of(load_last(x + i, end - i, -INFINITY)));
    sums[begin / kSumBlock] = sum.sum() + other.sum();
  }
}

void weigh(const float* x, int64_t size, const Weighing& by, float* weights) {
  const Weigher weight_of(by);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(weights + i, weight_of(load(x + i)));
  if (i < size) store_first(weights + i, weight_of(load_first(x + i, size - i)), size - i);
}

void block_maxima(const float* x, int64_t size, int64_t block, float* maxima) {
  for (int64_t begin = 0; begin < size; begin += block) {
    const int64_t end = begin + block < size ? begin + block : size;
    Vec top = all(-INFINITY);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) top = larger(load(x + i), top);
    if (i < end) top = larger(load_last(x + i, end - i, -INFINITY), top);
    *maxima++ = largest_of(top);
  }
}

int64_t collect(const float* x, int64_t size, float limit, int32_t* places) {
  int64_t count = 0, i = 0;
  const Vec least = all(limit);
  for (; i + kLanes <= size; i += kLanes) {
    uint32_t bits = ~bits_less(load(x + i), least) & kAllLanes;
    for (; bits; bits &= bits - 1) places[count++] = int32_t(i + __builtin_ctz(bits));
  }
  for (; i < size; ++i) {
    if (!(x[i] < limit)) places[count++] = int32_t(i);
  }
  return count;
}

int64_t count_above(const float* x, int64_t size, float value) {
  int64_t count = 0, i = 0;
  const Vec least = all(value);
  for (; i + kLanes <= size; i += kLanes) count += __builtin_popcount(bits_less(least, load(x + i)));
  for (; i < size; ++i) count += value < x[i];
  return count;
}

void mask(float* x, int64_t size, const uint32_t* words) {
  for (int64_t begin = 0; begin < size; begin += 32) {
    const uint32_t word = words[begin / 32];
    if (word == 0xFFFFFFFFu) continue;
    const int64_t end = begin + 32 < size ? begin + 32 : size;
    for (int64_t i = begin; i < end; ++i) {
      if (!(word >> (i - begin) & 1)) x[i] = -INFINITY;
    }
  }
}

}  // namespace

extern const SamplingKernels sampling;
const SamplingKernels sampling{largest, block_sums, weigh, block_maxima, collect, count_above, mask};

}  // namespace modulm::MODULM_ISA
