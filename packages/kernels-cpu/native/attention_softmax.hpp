// Softmax that is computed tile by tile, with the largest score so far. Scores are in units of log 2.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention.hpp"
#include "attention_tile.hpp"

namespace modulm::MODULM_ISA {
namespace {

// What is done to the scores of one row before they are compared.
struct ScoreRule {
  float soft_cap;  // in units of log 2; 0 for none, else queries were divided by the cap
  float slope;     // likewise
};

// A row's share of a tile: of all lanes from vector `begin` to `end`, it sees first <= lane < stop.
struct Visible {
  int begin, end, first, stop;
};

inline Vec ruled(Vec score, const ScoreRule& rule, float distance) {
  if (rule.soft_cap != 0.0f) score = tanh_of(score) * all(rule.soft_cap);
  if (rule.slope != 0.0f) score = fma(all(rule.slope), lane_numbers() + all(distance), score);
  return score;
}

// The rule is applied in place, and what the row does not see becomes -infinity. Returns the largest score.
// `distance`: position of lane 0 minus position of the query.
inline float largest_score(float* scores, const Visible& seen, const ScoreRule& rule, float distance) {
  if (seen.stop <= seen.first) return -INFINITY;
  const bool is_plain = rule.soft_cap == 0.0f && rule.slope == 0.0f;
  Vec most = all(-INFINITY);
  for (int v = seen.begin; v < seen.end; ++v) {
    Vec score = load(scores + v * kLanes);
    const int first = seen.first - v * kLanes, stop = seen.stop - v * kLanes;
    const bool is_whole = first <= 0 && stop >= kLanes;
    if (!is_plain) score = ruled(score, rule, distance + float(v * kLanes));
    if (!is_whole) score = keep_lanes(score, first, stop, all(-INFINITY));
    if (!is_plain || !is_whole) store(scores + v * kLanes, score);
    most = larger(score, most);
  }
  return largest_of(most);
}

// Scores become weights in place, zero where the row sees nothing. `here` is the largest of them; `largest` and `sum`
// are brought up to date. Returns the factor for what was summed before.
inline float scores_to_weights(float* scores, const Visible& seen, float here, float* largest, float* sum) {
  if (seen.stop <= seen.first) {
    for (int v = seen.begin; v < seen.end; ++v) store(scores + v * kLanes, all(0.0f));
    return 1.0f;
  }
  const float before = *largest, now = here > before ? here : before;
  // With no finite score yet, any finite number will do.
  const Vec base = all(now == -INFINITY ? 0.0f : now);
  Vec total = all(0.0f);
  for (int v = seen.begin; v < seen.end; ++v) {
    const Vec weight = exp2_of(load(scores + v * kLanes) - base);
    store(scores + v * kLanes, weight);
    total = total + weight;
  }
  const float factor = now == before ? 1.0f : exp2_of(before - now);
  *largest = now;
  *sum = *sum * factor + sum_of(total);
  return factor;
}

}  // namespace
}  // namespace modulm::MODULM_ISA
