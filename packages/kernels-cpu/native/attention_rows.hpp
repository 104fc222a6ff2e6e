// Rows of a unit: which query each is, what it sees, and what it leaves in the output or for other splits.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_cache.hpp"
#include "attention_softmax.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Row r is head r % group of query r / group.
struct UnitRows {
  const AttentionCall& call;
  const AttentionUnit& unit;
  const int64_t group, first_head, count;
  const float query_scale;

  UnitRows(const AttentionCall& of_call, const AttentionUnit& of_unit, int64_t kv_head)
      : call(of_call),
        unit(of_unit),
        group(call.num_heads / call.num_kv_heads),
        first_head(kv_head * group),
        count(unit.num_tokens * group),
        query_scale(call.scale * (call.soft_cap != 0.0f ? 1.0f / call.soft_cap : kLog2e) * unit_of(call.key_scales)) {}

  int64_t token(int64_t row) const { return unit.first_token + row / group; }
  int64_t head(int64_t row) const { return first_head + row % group; }
  int64_t position(int64_t row) const { return unit.first_position + row / group; }
  int64_t first_seen(int64_t position) const {
    return call.window == 0 || position < call.window ? 0 : position - call.window + 1;
  }
  ScoreRule rule(int64_t row) const {
    const float slope = call.alibi_slopes == nullptr ? 0.0f : call.alibi_slopes[head(row)];
    return {call.soft_cap * kLog2e, slope * kLog2e};
  }
  float* out(int64_t row) const { return call.out + (token(row) * call.num_heads + head(row)) * call.head_size; }

  // What 1 stands for in the numbers that are read of the head's keys or values.
  float unit_of(const float* scales) const {
    return scale_of(scales, first_head / group) * (call.cache_type == CacheType::e4m3 ? kUnit<E4M3> : 1.0f);
  }

  // The row's query, rotated and scaled, so that its products with keys are scores, or those divided by the cap.
  void query(int64_t row, float* to) const {
    const int64_t token = this->token(row);
    rotate(call, call.query + token * call.query_token_stride + head(row) * call.query_head_stride, token, query_scale, to);
  }
  void ask_query(int64_t row) const {
    const float* from = call.query + token(row) * call.query_token_stride + head(row) * call.query_head_stride;
    for (int64_t d = 0; d < call.head_size; d += 16) __builtin_prefetch(from + d, 0, 2);
  }
};

inline int64_t partial_size(int64_t head_size) { return head_size + 2; }

// Sinks take part in the sum of weights, and hold no value.
inline float with_sink(const AttentionCall& call, int64_t head, float largest, float total, float* factor) {
  *factor = 1.0f;
  if (call.sinks == nullptr) return total;
  const float sink = call.sinks[head] * kLog2e;
  if (sink <= largest) return total + exp2_of(sink - largest);
  *factor = exp2_of(largest - sink);
  return total * *factor + 1.0f;
}

// Writes what was found for each row, its largest score, the sum of weights and sums(row, d), kLanes numbers of the sum of
// weighted values: into `call.out`, or into `partial` where the unit is one of several splits.
template <class Sums>
inline void leave(const UnitRows& rows, const float* largest, const float* totals, const Sums& sums, float* partial) {
  const int64_t size = rows.call.head_size;
  const float unit = rows.unit_of(rows.call.value_scales);
  const bool is_whole = rows.unit.num_splits == 1;
  for (int64_t row = 0; row < rows.count; ++row) {
    float factor = 1.0f, total = totals[row];
    float* const to = is_whole ? rows.out(row) : partial + row * partial_size(size);
    if (is_whole) {
      total = with_sink(rows.call, rows.head(row), largest[row], total, &factor);
      factor = factor * unit / total;
    } else {
      to[size] = largest[row];
      to[size + 1] = total;
    }
    int64_t d = 0;
    for (; d + kLanes <= size; d += kLanes) store(to + d, sums(row, d) * all(factor));
    if (d < size) store_first(to + d, sums(row, d) * all(factor), size - d);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
