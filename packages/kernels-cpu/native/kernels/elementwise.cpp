#include "elementwise.hpp"

#include <math.h>

#include "gates.hpp"

namespace modulm::MODULM_ISA {
namespace {

// whole(i) for each kLanes numbers of a row, rest(i, count) for the last few.
template <class Whole, class Rest>
inline void along(int64_t size, const Whole& whole, const Rest& rest) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) whole(i);
  if (i < size) rest(i, size - i);
}

float sum_of_squares(const float* x, int64_t size) {
  Vec sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};  // independent, so that additions overlap
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec numbers = load(x + i + j * kLanes);
      sums[j] = fma(numbers, numbers, sums[j]);
    }
  }
  for (; i < size; i += kLanes) {
    const Vec numbers = i + kLanes <= size ? load(x + i) : load_first(x + i, size - i);
    sums[0] = fma(numbers, numbers, sums[0]);
  }
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void rms_norm(const float* x, const float* weight, float* out, int64_t begin, int64_t end, int64_t size, float eps,
              float offset) {
  const Vec plus = all(offset);
  for (int64_t row = begin; row < end; ++row) {
    const float* from = x + row * size;
    float* to = out + row * size;
    const Vec factor = all(float(1.0 / sqrt(double(sum_of_squares(from, size)) / double(size) + double(eps))));
    along(
        size, [=](int64_t i) { store(to + i, load(from + i) * factor * (plus + load(weight + i))); },
        [=](int64_t i, int64_t n) {
          store_first(to + i, load_first(from + i, n) * factor * (plus + load_first(weight + i, n)), n);
        });
  }
}

// product(gate, up) for each number.
template <class Function>
inline void pairs(const float* x, int64_t x_stride, float* out, int64_t out_stride, int64_t begin, int64_t end,
                  int64_t size, const Function& product) {
  for (int64_t row = begin; row < end; ++row) {
    const float *gates = x + row * x_stride, *ups = gates + size;
    float* to = out + row * out_stride;
    along(
        size, [=](int64_t i) { store(to + i, product(load(gates + i), load(ups + i))); },
        [=](int64_t i, int64_t n) { store_first(to + i, product(load_first(gates + i, n), load_first(ups + i, n)), n); });
  }
}

void gated_activation(const float* x, int64_t x_stride, float* out, int64_t out_stride, int64_t begin, int64_t end,
                      int64_t size, Activation act) {
  with_gates(act, [&](const auto& product) { pairs(x, x_stride, out, out_stride, begin, end, size, product); });
}

void turn(float* x, const float* cos, const float* sin, int64_t half) {
  const auto turned = [](Vec a, Vec b, Vec c, Vec s, Vec* second) {
    *second = fma(b, c, a * s);
    return fma(a, c, all(0.0f) - b * s);
  };
  along(
      half,
      [=](int64_t i) {
        Vec second;
        store(x + i, turned(load(x + i), load(x + half + i), load(cos + i), load(sin + i), &second));
        store(x + half + i, second);
      },
      [=](int64_t i, int64_t n) {
        Vec second;
        const Vec first = turned(load_first(x + i, n), load_first(x + half + i, n), load_first(cos + i, n),
                                 load_first(sin + i, n), &second);
        store_first(x + i, first, n);
        store_first(x + half + i, second, n);
      });
}

void rotary(const Heads& heads, const float* cos, const float* sin, int64_t width, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < heads.num_heads; ++head) {
      turn(heads.data + token * heads.token_stride + head * heads.head_stride, cos + token * width, sin + token * width,
           width / 2);
    }
  }
}

void add(const float* a, const float* b, float* out, int64_t begin, int64_t end) {
  const float *left = a + begin, *right = b + begin;
  float* to = out + begin;
  along(
      end - begin, [=](int64_t i) { store(to + i, load(left + i) + load(right + i)); },
      [=](int64_t i, int64_t n) { store_first(to + i, load_first(left + i, n) + load_first(right + i, n), n); });
}

void soft_cap(float* x, float divisor, float cap, int64_t begin, int64_t end) {
  float* numbers = x + begin;
  const Vec by = all(divisor), limit = all(cap);
  const auto capped = [=](Vec v) { return cap == 0.0f ? v / by : limit * tanh_of(v / by / limit); };
  along(
      end - begin, [=](int64_t i) { store(numbers + i, capped(load(numbers + i))); },
      [=](int64_t i, int64_t n) { store_first(numbers + i, capped(load_first(numbers + i, n)), n); });
}

}  // namespace

extern const ElementwiseKernels elementwise;
const ElementwiseKernels elementwise{rms_norm, gated_activation, rotary, add, soft_cap};

}  // namespace modulm::MODULM_ISA
