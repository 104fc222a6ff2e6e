// Paged attention of one sequence, in two steps, against a plain loop in float64.
#include "attention.hpp"

#include "attention_plan.hpp"
#include "check.hpp"
#include "float_types.hpp"

namespace modulm {
namespace {

struct Problem {
  int64_t heads, kv_heads, head_size, block_size, length, earlier;
  int32_t window;
  CacheType type;
  bool exact;
  std::vector<float> query, key, value;

  explicit Problem(Random& random)
      : kv_heads(1 + random.below(2)),
        head_size(8 * (1 + random.below(9))),
        block_size(random.below(2) == 0 ? 16 : 1 + random.below(33)),
        length(2 + random.below(random.below(4) == 0 ? 700 : 90)),
        window(random.below(3) == 0 ? 1 + random.below(60) : 0),
        type(CacheType(random.below(3))),
        exact(random.below(2) == 0) {
    heads = kv_heads * (1 + random.below(4));
    earlier = random.below(3) == 0 ? length - 1 : random.below(int(length));
    query = random.numbers(length * heads * head_size);
    key = random.numbers(length * kv_heads * head_size);
    value = random.numbers(length * kv_heads * head_size);
    for (float& one : query) one /= 16;
    for (std::vector<float>* both : {&key, &value}) {
      for (float& one : *both) one = stored(one);
    }
  }

  // A number that the cache holds as it is.
  float stored(float x) const {
    return type == CacheType::float16 ? from_f16(to_f16(x)) : type == CacheType::bfloat16 ? from_bf16(to_bf16(x)) : x;
  }

  float scale() const { return 1.0f / std::sqrt(float(head_size)); }

  // Output of one head of one token.
  std::vector<double> expected(int64_t token, int64_t head) const {
    const int64_t kv_head = head / (heads / kv_heads), seen = token + 1 - window;
    std::vector<double> scores, out(size_t(head_size), 0.0);
    double largest = -INFINITY, total = 0;
    const int64_t first = window == 0 || seen < 0 ? 0 : seen;
    for (int64_t t = first; t <= token; ++t) {
      double score = 0;
      for (int64_t d = 0; d < head_size; ++d) {
        score += double(query[size_t((token * heads + head) * head_size + d)]) *
                 double(key[size_t((t * kv_heads + kv_head) * head_size + d)]);
      }
      scores.push_back(score * double(scale()));
      largest = std::max(largest, scores.back());
    }
    for (double& score : scores) total += score = std::exp(score - largest);
    for (int64_t t = first; t <= token; ++t) {
      for (int64_t d = 0; d < head_size; ++d) {
        out[size_t(d)] += scores[size_t(t - first)] / total *
                          double(value[size_t((t * kv_heads + kv_head) * head_size + d)]);
      }
    }
    return out;
  }
};

// Computes tokens [begin, end) of the sequence, whose blocks lie in the cache in reverse order.
void step(const Problem& problem, Isa isa, Pool& pool, std::vector<float>& cache, int64_t begin, int64_t end,
          std::vector<float>& out) {
  if (begin == end) return;
  const int64_t blocks = (problem.length + problem.block_size - 1) / problem.block_size;
  std::vector<int32_t> table;
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < blocks; ++i) table.push_back(int32_t(blocks - 1 - i));
  for (int64_t t = begin; t < end; ++t) {
    slots.push_back(table[size_t(t / problem.block_size)] * problem.block_size + t % problem.block_size);
  }
  const int32_t start[] = {0, int32_t(end - begin)}, length = int32_t(end);
  AttentionPlan plan(start, 1, &length, table.data(), blocks, slots.data(), end - begin, problem.block_size);
  const int64_t width = problem.heads * problem.head_size, kv_width = problem.kv_heads * problem.head_size;
  AttentionCall call{};
  call.query = problem.query.data() + begin * width;
  call.key = problem.key.data() + begin * kv_width;
  call.value = problem.value.data() + begin * kv_width;
  call.query_token_stride = width;
  call.key_token_stride = call.value_token_stride = kv_width;
  call.query_head_stride = call.key_head_stride = call.value_head_stride = problem.head_size;
  call.out = out.data() + begin * width;
  call.cache = cache.data();
  call.cache_type = problem.type;
  call.num_heads = problem.heads;
  call.num_kv_heads = problem.kv_heads;
  call.head_size = problem.head_size;
  call.block_size = problem.block_size;
  call.scale = problem.scale();
  call.window = problem.window;
  call.exact = problem.exact;
  plan.run(call, blocks, attention(isa), pool);
}

void check_one(const Problem& problem, const Isas& isas, Pool& pool, Report& report, int round) {
  const bool rounds = !problem.exact && problem.type != CacheType::float32;  // to parts of the largest
  double largest = 0.0;
  for (float value : problem.value) largest = std::max(largest, double(std::abs(value)));
  for (const Isa isa : isas) {
    const double step_size = isa == Isa::amx ? 1.0 / 256 : 1e-3;  // in tiles weights and values have 8 bits
    const int64_t positions = problem.length + problem.block_size, width = problem.heads * problem.head_size;
    std::vector<float> cache(size_t(2 * positions * problem.kv_heads * problem.head_size), NAN);
    std::vector<float> out(size_t(problem.length * width));
    step(problem, isa, pool, cache, 0, problem.earlier, out);
    step(problem, isa, pool, cache, problem.earlier, problem.length, out);
    for (int64_t t = 0; t < problem.length; t += t + 8 < problem.earlier ? 5 : 1) {
      for (int64_t head = 0; head < problem.heads; ++head) {
        const std::vector<double> expected = problem.expected(t, head);
        for (int64_t d = 0; d < problem.head_size; ++d) {
          report.near(out[size_t((t * problem.heads + head) * problem.head_size + d)], expected[size_t(d)],
                      1 + (rounds ? largest : std::abs(expected[size_t(d)])), rounds ? step_size : 1e-5, "attention", isa,
                      round);
        }
      }
    }
  }
}

const Registered kCheck([](const Isas& isas) {
  Report report("attention");
  Random random(4);
  Pool pool(2);
  for (int round = 0; round < 30; ++round) check_one(Problem(random), isas, pool, report, round);
  return report.close();
});

}  // namespace
}  // namespace modulm
