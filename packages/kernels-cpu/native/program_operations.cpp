#include "program_operations.hpp"

#include <algorithm>
#include <cmath>

#include "linear_dense_arguments.hpp"

namespace modulm {
namespace {

constexpr int64_t kTileRows = 128;

void gate(const Frame& frame, const float* x, int64_t stride, float* out, int64_t out_stride, int64_t rows,
          int64_t size, Activation function) {
  const auto kernel = elementwise().gated_activation;
  over_rows(frame, rows, 4 * size, [&, kernel](int64_t begin, int64_t end) {
    kernel(x, stride, out, out_stride, begin, end, size, function);
  });
}

// `both` is for gates and ups of kTileRows rows at most.
void multiply_gated(const Frame& frame, const Matrix& matrix, const float* x, int64_t stride, Activation function,
                    float* both, float* out, int64_t out_stride) {
  if (matrix.multiply_gated(frame, x, stride, frame.rows, function, out, out_stride)) return;
  const int64_t wide = matrix.out_features;
  for (int64_t first = 0; first < frame.rows; first += kTileRows) {
    const int64_t rows = std::min(kTileRows, frame.rows - first);
    matrix.multiply(frame, x + first * stride, stride, rows, both, wide);
    gate(frame, both, wide, out + first * out_stride, out_stride, rows, wide / 2, function);
  }
}

Packing packing_of(const TokenPacker* by, const Matrix& matrix, const Frame& frame, const Place& x) {
  if (by == nullptr) return {};
  return {by, frame.at(x), x.stride, room_for(*by, frame.rows, matrix.in_features())};
}

}  // namespace

void Embedding::run(Frame& frame) const {
  require_indices(frame.inputs.token_ids, frame.rows, weight->out_features());
  weight->gather(frame.inputs.token_ids, frame.rows, frame.at(out), out.stride);
}

void Linear::run_unpacked(Frame& frame) const {
  matrix.multiply(frame, frame.at(x), x.stride, frame.rows, frame.at(out), out.stride);
}

Packing Linear::packing(Frame& frame) const { return packing_of(matrix.packer(frame.rows), matrix, frame, x); }

bool SummedProduct::multiply(Frame& frame, const Matrix& last, const TokenPacker& by, const Activations& packed) const {
  if (sum == nullptr || !last.adds(frame.rows)) {
    last.multiply(frame, by, packed, frame.rows, frame.at(out), out.stride);
    return false;
  }
  const Place& other = sum->a == out ? sum->b : sum->a;
  last.multiply(frame, by, packed, frame.rows, frame.at(sum->out), sum->out.stride, frame.at(other), other.stride);
  return true;
}

bool Linear::run_packed(Frame& frame, const Packing& packed) const {
  return multiply(frame, matrix, *packed.by, packed.to);
}

void GatedLinear::run(Frame& frame) const {
  float* both = frame.scratch(std::min(frame.rows, kTileRows) * matrix.out_features);
  multiply_gated(frame, matrix, frame.at(x), x.stride, function, both, frame.at(out), out.stride);
}

void GatedMLP::run_unpacked(Frame& frame) const {
  const int64_t rows = frame.rows, size = down.in_features();
  float* gated = frame.scratch(rows * size + std::min(rows, kTileRows) * matrix.out_features);
  multiply_gated(frame, matrix, frame.at(x), x.stride, function, gated + rows * size, gated, size);
  down.multiply(frame, gated, size, rows, frame.at(out), out.stride);
}

Packing GatedMLP::packing(Frame& frame) const {
  const TokenPacker* next = down.packer(frame.rows);
  if (next == nullptr || next->together != kPanelRows) return {};  // it takes what a panel gives
  return packing_of(matrix.gate_packer(frame.rows), matrix, frame, x);
}

bool GatedMLP::run_packed(Frame& frame, const Packing& packed) const {
  const int64_t rows = frame.rows, size = down.in_features();
  const TokenPacker& next = *down.packer(rows);
  const int64_t room = packed_tokens(next, rows);
  float* memory = frame.scratch(Activations::bytes_for(room, size) / 4);
  const Activations gated = Activations::in(memory, room, size, next.inputs_per_word);
  matrix.multiply_gated(frame, *packed.by, packed.to, rows, function, next, gated);
  return multiply(frame, down, next, gated);
}

void GatedActivation::run(Frame& frame) const {
  gate(frame, frame.at(x), x.stride, frame.at(out), out.stride, frame.rows, size, function);
}

void RmsNorm::run_rows(const Frame& frame, int64_t begin, int64_t end) const {
  const auto norm = elementwise().rms_norm;
  for (int64_t row = begin; row < end; ++row) {
    norm(frame.at(x, row), weight.data(), frame.at(out, row), 0, count, int64_t(weight.size()), eps, offset);
  }
}

void Add::run_rows(const Frame& frame, int64_t begin, int64_t end) const {
  const auto add = elementwise().add;
  for (int64_t row = begin; row < end; ++row) add(frame.at(a, row), frame.at(b, row), frame.at(out, row), 0, size);
}

void Scale::run_rows(const Frame& frame, int64_t begin, int64_t end) const {
  for (int64_t row = begin; row < end; ++row) {
    const float* from = frame.at(x, row);
    float* to = frame.at(out, row);
    for (int64_t i = 0; i < size; ++i) to[i] = from[i] * factor;
  }
}

void RotaryTables::run(Frame& frame) const {
  over_rows(frame, frame.rows, 64 * int64_t(inverse.size()),
            [&](int64_t begin, int64_t end) { fill(frame, begin, end); });
}

void RotaryTables::fill(Frame& frame, int64_t begin, int64_t end) const {
  const size_t half = inverse.size();
  std::vector<float> grown(is_dynamic ? half : 0);
  for (int64_t row = begin; row < end; ++row) {
    const float* frequencies = inverse.data();
    if (is_dynamic) {
      // Step by step in float32, as torch computes it.
      const float length = float(std::max(frame.inputs.lengths[row], stated)), width = float(2 * half);
      const float growth = float(factor) * length / float(stated) - float(factor - 1.0);
      const float base = float(theta) * std::pow(growth, width / (width - 2.0f));
      for (size_t i = 0; i < half; ++i) grown[i] = 1.0f / std::pow(base, float(2 * i) / width);
      frequencies = grown.data();
    } else if (!long_inverse.empty() && frame.inputs.lengths[row] > long_from) {
      frequencies = long_inverse.data();
    }
    const float position = float(frame.inputs.positions[row]);
    float *to_cos = frame.at(cos, row), *to_sin = frame.at(sin, row);
    for (size_t i = 0; i < half; ++i) {
      const double angle = double(position * frequencies[i]);
      to_cos[i] = to_cos[half + i] = float(std::cos(angle)) * scaling;
      to_sin[i] = to_sin[half + i] = float(std::sin(angle)) * scaling;
    }
  }
}

void Attention::run(Frame& frame) const {
  AttentionCall now = call;
  now.sinks = sinks.empty() ? nullptr : sinks.data();
  now.query = frame.at(query);
  now.key = frame.at(key);
  now.value = frame.at(value);
  now.query_token_stride = query.stride;
  now.key_token_stride = key.stride;
  now.value_token_stride = value.stride;
  now.out = frame.at(out);
  if (is_rotated) {
    now.cos = frame.at(cos);
    now.sin = frame.at(sin);
  }
  frame.inputs.plans[group]->run(now, num_blocks, attention(), *frame.pool);
}

std::vector<std::vector<SparseMoE::Share>> SparseMoE::route(const float* scores, int64_t rows) const {
  const int64_t count = router.out_features;
  std::vector<std::vector<Share>> shares(static_cast<size_t>(count));
  std::vector<float> probabilities(static_cast<size_t>(count));
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t row = 0; row < rows; ++row) {
    const float* mine = scores + row * count;
    const float largest = *std::max_element(mine, mine + count);
    float total = 0.0f, chosen = 0.0f;
    for (int64_t i = 0; i < count; ++i) total += probabilities[size_t(i)] = std::exp(mine[i] - largest);
    for (int64_t i = 0; i < count; ++i) order[size_t(i)] = i;
    // Of what is not a number any order will do, but it has to be an order.
    const auto rank = [&](int64_t i) { return std::isnan(probabilities[size_t(i)]) ? -1.0f : probabilities[size_t(i)]; };
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int64_t a, int64_t b) {
      return rank(a) > rank(b) || (rank(a) == rank(b) && a < b);
    });
    for (int64_t k = 0; k < top_k; ++k) chosen += probabilities[size_t(order[size_t(k)])];
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t expert = order[size_t(k)];
      shares[size_t(expert)].push_back({row, probabilities[size_t(expert)] / (normalised ? chosen : total)});
    }
  }
  return shares;
}

void SparseMoE::run(Frame& frame) const {
  const int64_t rows = frame.rows, wide = 2 * intermediate_size;
  // One after the other: scores; gathered inputs, which results replace; gates and ups; their products.
  float* scores = frame.scratch(rows * (router.out_features + hidden_size + wide + intermediate_size));
  float* some = scores + rows * router.out_features;
  float* both = some + rows * hidden_size;
  float* gated = both + rows * wide;
  router.multiply(frame, frame.at(x), x.stride, rows, scores, router.out_features);
  const auto shares = route(scores, rows);
  for (int64_t row = 0; row < rows; ++row) std::fill_n(frame.at(out, row), hidden_size, 0.0f);
  for (size_t expert = 0; expert < shares.size(); ++expert) {
    const std::vector<Share>& mine = shares[expert];
    const int64_t count = int64_t(mine.size());
    if (count == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(frame.at(x, mine[size_t(i)].row), hidden_size, some + i * hidden_size);
    }
    gate_up[expert].multiply(frame, some, hidden_size, count, both, wide);
    gate(frame, both, wide, gated, intermediate_size, count, intermediate_size, function);
    down[expert].multiply(frame, gated, intermediate_size, count, some, hidden_size);
    for (int64_t i = 0; i < count; ++i) {
      float* to = frame.at(out, mine[size_t(i)].row);
      const float *from = some + i * hidden_size, weight = mine[size_t(i)].weight;
      for (int64_t j = 0; j < hidden_size; ++j) to[j] += from[j] * weight;
    }
  }
}

void LMHead::run(Frame& frame) const {
  float* out = frame.inputs.logits;
  matrix.multiply(frame, frame.at(x), x.stride, frame.rows, out, matrix.out_features);
  if (divisor == 1.0f && soft_cap == 0.0f) return;
  const auto cap = elementwise().soft_cap;
  frame.pool->run(frame.rows * matrix.out_features, kNumbersAtOnce,
                  [&, cap](int64_t begin, int64_t end) { cap(out, divisor, soft_cap, begin, end); });
}

}  // namespace modulm
