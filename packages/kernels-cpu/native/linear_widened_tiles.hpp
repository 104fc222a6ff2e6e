// Products of tiles with weights that become bfloat16 on the way: a panel is widened once for all tokens of a call, or,
// for a few tokens, step by step beside the products of the last step. Included by kernels of the namespace `amx` only.
#pragma once

#include <algorithm>
#include <memory>

#include "linear_tile_sums.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kSteps = 18;  // widened at once, or half as many more: they stay in the L1 cache
constexpr int64_t kMostSteps = kSteps + kSteps / 2;
constexpr int64_t kLag = 3;  // steps between what is written and the tiles loaded of it, which else would wait
constexpr int64_t kRing = 8;

// What a thread works in: too much for small stacks.
struct alignas(64) WideRoom {
  uint8_t weights[kMostSteps * kStepBytes];
  float sums[kMostOfPanel * kPanel];
  float scales[kPanel];
};

// The calling thread's, one for all kinds of weights and made when it is first asked for: what is declared `thread_local`
// itself, the system clears for every thread that calls this library at all.
template <class Room>
Room& room_of_thread() {
  thread_local const std::unique_ptr<Room> room(new Room());
  return *room;
}

// Of so many steps, how many are widened at once: parts of one size.
inline int64_t steps_at_once(int64_t steps) {
  const int64_t parts = std::max<int64_t>(1, (steps + kSteps / 2) / kSteps);
  return (steps + parts - 1) / parts;
}

// Where sums go that are whole, `factor` times, and added to what results say.
class Whole {
 public:
  Whole(float factor, WideRoom& room) : factor_(factor), room_(room) { std::fill_n(room.scales, kPanel, factor); }
  ~Whole() { scaled.finish(); }

  // Take what tiles hold; `buffer` is for 32 tokens and not used again for as many.
  void take(const Results& results, float* buffer) {
    if (factor_ == 1.0f && results.added() == nullptr) return results.store(buffer);
    scaled.begin(buffer, room_.scales, results.added(), results.added_stride(), results, buffer);
  }

  Scaled scaled;

 private:
  const float factor_;
  WideRoom& room_;
};

// Results that take what is whole.
struct WholeResults {
  Whole& whole;
  const Results results;

  void store(float* sums) const { whole.take(results, sums); }
};

// A panel for at most 32 tokens: a step is widened while tiles multiply the one before.
template <class Source>
void multiply_few(const Source& source, const Activations& x, int64_t panel, bool both, const Results& results,
                  int64_t token, WideRoom& room, Whole& whole) {
  const int64_t steps = steps_of(x.inputs);
  const auto place = [&](int64_t step) { return room.weights + step % kRing * kStepBytes; };
  clear_sums();
  for (int64_t step = 0; step < steps + kLag; ++step) {
    if (step < steps) source(panel, step, place(step));
    written();
    if (step >= kLag) add_steps(step_of(x, step - kLag, token), 0, place(step - kLag), 1, both, whole.scaled);
  }
  whole.take(results, room.sums);
}

// 32 rows for tokens [first, last), at most kMostOfPanel. `widen(begin, end, to)` is for steps, results(token, count) is
// who stores what tiles hold, and asks for what that needs; it is not told of any tokens while steps are left. `beside` is called after
// each step, and told how many there are.
template <class Widen, class ResultsOf, class Beside>
void multiply_many(const Widen& widen, const Activations& x, int64_t first, int64_t last, WideRoom& room,
                   const ResultsOf& results_of, Beside& beside) {
  const int64_t steps = steps_of(x.inputs), most = steps_at_once(steps), stride = x.tokens * kWords;
  for (int64_t begin = 0; begin < steps; begin += most) {
    const int64_t end = std::min(begin + most, steps);
    widen(begin, end, room.weights);
    written();
    for (int64_t token = first; token < last; token += kGroup) {
      const int64_t tokens = std::min(last - token, kGroup);
      const bool both = tokens > kTokens, is_last = end == steps;
      float* sums = room.sums + (most == steps ? 0 : (token - first) * kPanel);
      begin == 0 ? clear_sums() : load_sums(sums, both);
      const auto results = results_of(token, is_last ? tokens : 0);
      beside.expect(end - begin);
      add_steps(step_of(x, begin, token), stride, room.weights, end - begin, both, beside);
      is_last ? results.store(sums) : store_sums(sums, both);
      written();
    }
  }
}

// `source(panel, step, to)` widens a step of a panel; results are `factor` times the sums.
template <class Source>
void multiply_widened(const Source& source, float factor, const Activations& x, const Output& out, int64_t begin,
                      int64_t end, int64_t first, int64_t last) {
  WideRoom& room = room_of_thread<WideRoom>();
  const Tiles tiles(shapes_for(last - first));
  Whole whole(factor, room);
  for (int64_t panel = begin; panel < end; ++panel) {
    if (last - first > kGroup) {
      const auto widen = [&](int64_t step, int64_t end, uint8_t* to) {
        for (; step < end; ++step, to += kStepBytes) source(panel, step, to);
      };
      const auto results = [&](int64_t token, int64_t count) {
        return WholeResults{whole, Results(out, panel, token, count)};
      };
      multiply_many(widen, x, first, last, room, results, whole.scaled);
    } else {
      whole.scaled.expect(steps_of(x.inputs));
      multiply_few(source, x, panel, last - first > kTokens, Results(out, panel, first, last - first), first, room, whole);
    }
  }
}

// Two numbers of 16 rows -> pairs of bfloat16, cut off: see `kOfCut`.
inline void store_pairs(uint8_t* to, Vec first, Vec second) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  const __m512i upper = _mm512_set1_epi32(int(0xffff0000u)), high = _mm512_castps_si512(second);
  _mm512_store_si512(to, _mm512_ternarylogic_epi32(high, upper, low, 0xea));  // high & upper | low
}

// The second 16 inputs of a step, where there are none, of 16 rows: what was there may not be finite, and times 0 it would
// be NaN.
inline void clear_half(uint8_t* step) {
  for (int word = kWords / 2; word < kWords; ++word) _mm512_store_si512(step + word * kWordBytes, _mm512_setzero_si512());
}

// What cut off is on average half a step of bfloat16 too small, 2^-8 of a number's power of two, which is 1.44 times less
// than the number itself on average. So numbers this much larger err to both sides alike, and by no more than 6 % more
// than rounded ones would.
constexpr float kOfCut = 1.0f + 0x1p-8f / 1.4427f;

}  // namespace
}  // namespace modulm::MODULM_ISA
