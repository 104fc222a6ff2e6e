// bfloat16 by bfloat16 for a few tokens, which wait for memory: it is read a seventh faster line by line than in tiles.
// Numbers are added up as tiles do, so that how many tokens there are changes no result: of each step first inputs of words
// and second ones apart, word by word, then both sums together. Included by kernels of the namespace `amx` only.
#pragma once

#include "linear_bf16_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kMostInLines = 3;  // tokens; more are faster in tiles

// While one lives, numbers too small to be normal count as 0 on this thread, as they do in tiles.
class NoSubnormals {
 public:
  NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~NoSubnormals() { _mm_setcsr(before_); }
  NoSubnormals(const NoSubnormals&) = delete;
  NoSubnormals& operator=(const NoSubnormals&) = delete;

 private:
  const unsigned before_;
};

// Both numbers of a word of activations.
inline Vec first_of(__m512i word) { return _mm512_castsi512_ps(_mm512_slli_epi32(word, 16)); }
inline Vec second_of(__m512i word) {
  return _mm512_castsi512_ps(_mm512_and_si512(word, _mm512_set1_epi32(int(0xffff0000u))));
}

template <int tokens>
inline void clear(Vec (&sums)[tokens][2]) {
  for (int t = 0; t < tokens; ++t) sums[t][0] = sums[t][1] = all(0.0f);
}

// Calls body.template operator()<tokens>() for one to kMostInLines.
template <class Body>
inline void with_count(int64_t tokens, const Body& body) {
  switch (tokens) {
    case 1: return body.template operator()<1>();
    case 2: return body.template operator()<2>();
    default: return body.template operator()<3>();
  }
}

// The sums of words [word, end) of a panel, stored as [token][32 rows]; `word` begins a step. `lines.load(word, first,
// second)` gives both inputs of all rows.
template <int tokens, class Lines>
inline void add_lines(const Lines& lines, int64_t word, int64_t end, const Activations& x, float* sums) {
  const NoSubnormals none;
  Vec totals[tokens][2], first[tokens][2], second[tokens][2];
  clear(totals);
  while (word < end) {
    clear(first), clear(second);
    const int64_t begin = word, stop = word + kWords < end ? word + kWords : end;
    const float* from = step_of(x, begin / kWords, 0);
    for (; word < stop; ++word) {
      Vec firsts[2], seconds[2];
      lines.load(word, firsts, seconds);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        const __m512i pair = _mm512_castps_si512(all(from[t * kWords + word - begin]));
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          first[t][v] = fma(firsts[v], first_of(pair), first[t][v]);
          second[t][v] = fma(seconds[v], second_of(pair), second[t][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) {
      for (int v = 0; v < 2; ++v) totals[t][v] = totals[t][v] + (first[t][v] + second[t][v]);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int v = 0; v < 2; ++v) store(sums + t * kPanel + v * kLanes, totals[t][v]);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
