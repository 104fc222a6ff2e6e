#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cfloat>
#include <cmath>
#include <stdexcept>
#include <string>

#include "bindings.hpp"
#include "sampling.hpp"
#include "sampling_row.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

constexpr int64_t kNumbersAtOnce = 8192;  // about a microsecond; less is not worth waking a thread

template <class T, size_t kDimensions = 1>
using Host = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
using Logits = Host<float, 2>;
using Integers = Host<const int64_t>;
using Floats = Host<const float>;
using Doubles = Host<const double>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

template <class Array>
int64_t length(const Array& array) {
  return int64_t(array.shape(0));
}

void require_below(const Integers& numbers, int64_t limit, const char* message) {
  for (int64_t i = 0; i < length(numbers); ++i) require(numbers.data()[i] >= 0 && numbers.data()[i] < limit, message);
}

constexpr const char* kRows = "sampling: rows must be rows of the logits, and every array as long as rows";
constexpr const char* kIds = "sampling: token ids must be below the vocabulary's size";
constexpr int64_t kMostTokens = int64_t(1) << 31;

// Checks what all functions have in common; returns the vocabulary's size.
int64_t checked_size(const Logits& logits, const Integers& rows) {
  require(logits.shape(1) > 0 && int64_t(logits.shape(1)) < kMostTokens, "sampling: vocabulary of no or too many tokens");
  require_below(rows, length(logits), kRows);
  return int64_t(logits.shape(1));
}

// Calls body(i, row of the logits) for each of `rows`, shared out over the pool.
template <class Body>
void over_rows(const Logits& logits, const Integers& rows, const Body& body) {
  const int64_t size = int64_t(logits.shape(1));
  const int64_t grain = std::max<int64_t>(1, kNumbersAtOnce / size);
  nb::gil_scoped_release release;
  pool().run(length(rows), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i, logits.data() + rows.data()[i] * size);
  });
}

// Scratch memory of the calling thread for one instruction set.
RowSampler& row_sampler(const SamplingKernels& kernels) {
  thread_local RowSampler sampler(kernels);
  if (&sampler.kernels() != &kernels) sampler = RowSampler(kernels);
  return sampler;
}

void argmax(const Logits& logits, const Integers& rows, const Host<int64_t>& out, const std::string& isa) {
  const int64_t size = checked_size(logits, rows);
  require(length(out) == length(rows), kRows);
  const SamplingKernels& kernels = sampling(isa_named(isa));
  over_rows(logits, rows, [&](int64_t i, const float* x) {
    int64_t at = 0;
    out.data()[i] = std::isfinite(kernels.largest(x, size, &at)) ? at : -1;
  });
}

void mask(const Logits& logits, const Integers& rows, const Host<const uint32_t, 2>& bitmask, const std::string& isa) {
  const int64_t size = checked_size(logits, rows), words = int64_t(bitmask.shape(1));
  require(length(bitmask) == length(rows) && words == (size + 31) / 32,
          "sampling: bitmask must be [rows, ceil(vocab_size / 32)]");
  const SamplingKernels& kernels = sampling(isa_named(isa));
  over_rows(logits, rows, [&](int64_t i, float* x) { kernels.mask(x, size, bitmask.data() + i * words); });
}

void bias(const Logits& logits, const Integers& rows, const Integers& ids, const Floats& values) {
  const int64_t size = checked_size(logits, rows);
  require(length(ids) == length(rows) && length(values) == length(rows), kRows);
  require_below(ids, size, kIds);
  for (int64_t i = 0; i < length(rows); ++i) {
    float& x = logits.data()[rows.data()[i] * size + ids.data()[i]];
    x = values.data()[i] == -INFINITY ? -INFINITY : x + values.data()[i];
  }
}

void penalise(const Logits& logits, const Integers& rows, const Integers& starts, const Integers& ids,
              const Floats& counts, const Host<const float, 2>& factors) {
  const int64_t size = checked_size(logits, rows), num_rows = length(rows);
  require(length(starts) == num_rows + 1 && factors.shape(0) == 3 && int64_t(factors.shape(1)) == num_rows, kRows);
  require(starts.data()[0] == 0 && starts.data()[num_rows] == length(ids) && length(counts) == length(ids),
          "sampling: starts must lead from 0 to the number of ids, and counts be as many");
  for (int64_t i = 0; i < num_rows; ++i) require(starts.data()[i] <= starts.data()[i + 1], "sampling: starts descend");
  require_below(ids, size, kIds);
  over_rows(logits, rows, [&](int64_t i, float* x) {
    const float repetition = factors.data()[i], frequency = factors.data()[num_rows + i];
    const float presence = factors.data()[2 * num_rows + i];
    for (int64_t j = starts.data()[i]; j < starts.data()[i + 1]; ++j) {
      const float count = counts.data()[j];
      float value = x[ids.data()[j]];
      value = value > 0.0f ? value / repetition : value * repetition;
      value -= frequency * count;
      value -= count > 0.0f ? presence : 0.0f;
      x[ids.data()[j]] = value > FLT_MAX ? FLT_MAX : value;
    }
  });
}

void draw(const Logits& logits, const Integers& rows, const Floats& temperature, const Floats& log_min_p,
          const Integers& top_k, const Doubles& top_p, const Doubles& numbers, const Host<int64_t>& out,
          const std::string& isa) {
  const int64_t size = checked_size(logits, rows), count = length(rows);
  require(length(temperature) == count && length(log_min_p) == count && length(top_k) == count &&
              length(top_p) == count && length(numbers) == count && length(out) == count,
          kRows);
  const SamplingKernels& kernels = sampling(isa_named(isa));
  over_rows(logits, rows, [&](int64_t i, const float* x) {
    out.data()[i] = row_sampler(kernels).draw(x, size,
                                              {temperature.data()[i], log_min_p.data()[i], top_k.data()[i],
                                               top_p.data()[i], numbers.data()[i]});
  });
}

void scores(const Logits& logits, const Integers& rows, const Integers& token_ids, const Integers& num_top,
            const Host<float>& logprobs, const Host<int64_t>& ranks, const Host<int64_t, 2>& top_ids,
            const Host<float, 2>& top_logprobs, const std::string& isa) {
  const int64_t size = checked_size(logits, rows), count = length(rows), width = int64_t(top_ids.shape(1));
  require(length(token_ids) == count && length(num_top) == count && length(logprobs) == count &&
              length(ranks) == count && length(top_ids) == count && length(top_logprobs) == count &&
              int64_t(top_logprobs.shape(1)) == width,
          kRows);
  require_below(token_ids, size, kIds);
  require_below(num_top, std::min(width, size) + 1, "sampling: num_top is more than there is room or vocabulary for");
  const SamplingKernels& kernels = sampling(isa_named(isa));
  over_rows(logits, rows, [&](int64_t i, const float* x) {
    const float chosen = x[token_ids.data()[i]];
    float* values = top_logprobs.data() + i * width;
    int64_t at = 0;
    const float best = kernels.largest(x, size, &at);
    ranks.data()[i] = 1 + kernels.count_above(x, size, chosen);
    if (!std::isfinite(best)) {
      logprobs.data()[i] = NAN;
      std::fill(values, values + num_top.data()[i], NAN);
      std::fill(top_ids.data() + i * width, top_ids.data() + i * width + num_top.data()[i], 0);
      return;
    }
    RowSampler& sampler = row_sampler(kernels);
    const double log_sum = sampler.log_sum(x, size, best);
    const auto logprob = [=](float value) { return float(double(value - best) - log_sum); };
    logprobs.data()[i] = logprob(chosen);
    sampler.top(x, size, num_top.data()[i], top_ids.data() + i * width, values);
    for (int64_t j = 0; j < num_top.data()[i]; ++j) values[j] = logprob(values[j]);
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  // Or nanobind would copy an array of another type or layout, and what is written to a copy is lost.
  const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("sampling_argmax", &argmax, exact("logits"), exact("rows"), exact("out"), nb::arg("isa") = "");
  m.def("sampling_mask", &mask, exact("logits"), exact("rows"), exact("bitmask"), nb::arg("isa") = "");
  m.def("sampling_bias", &bias, exact("logits"), exact("rows"), exact("ids"), exact("values"));
  m.def("sampling_penalise", &penalise, exact("logits"), exact("rows"), exact("starts"), exact("ids"), exact("counts"),
        exact("factors"));
  m.def("sampling_draw", &draw, exact("logits"), exact("rows"), exact("temperature"), exact("log_min_p"),
        exact("top_k"), exact("top_p"), exact("numbers"), exact("out"), nb::arg("isa") = "");
  m.def("sampling_scores", &scores, exact("logits"), exact("rows"), exact("token_ids"), exact("num_top"),
        exact("logprobs"), exact("ranks"), exact("top_ids"), exact("top_logprobs"), nb::arg("isa") = "");
}

}  // namespace modulm
