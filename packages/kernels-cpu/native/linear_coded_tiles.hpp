// Products of at most 16 tokens in tiles of codes alone, which bfloat16 holds exactly: sums of each group are scaled when they
// have left the tiles, beside the products of groups that follow. Scales and minimums in the weights
// (`linear_widened_tiles.hpp`) take 9 operations for 32 weights where codes take 2, and so few tokens do not make up for that.
//
// value = scale * number + minimum, so a group's sum is scale * (sum of number * x) + minimum * (sum of x). Included by kernels
// of the namespace `amx` only.
#pragma once

#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kBehind = 2;                // steps between codes that are unpacked and the tiles that are loaded of them
constexpr int64_t kUnpacked = 4, kHeads = 8;  // steps and groups that are kept: powers of two
constexpr int64_t kCodedBytes = kWords * 64;  // of a step of 16 rows

// What a thread works in.
struct alignas(64) CodedRoom {
  uint8_t codes[kUnpacked * kCodedBytes];
  float sums[kUnpacked][kTokens * kLanes];
  float heads[kHeads][2 * kLanes];
  float of_x[kTokens];
  float results[kTokens * kPanel];
};

// 16 rows by kCount tokens, of which `count` are there; their results are `stride` numbers apart. A `Source` stands at the first
// group of these rows and moves on with each call: head(to) puts 16 scales and 16 minimums, once for each `per_group` steps of
// unpack(to), which puts [16 words of two inputs][16 rows].
template <bool has_minimums, int kCount, class Source>
[[gnu::noinline]] void multiply_rows(Source source, int64_t per_group, const Activations& x, int64_t count, float factor,
                                     float* to, int64_t stride, CodedRoom& room) {
  const int64_t steps = steps_of(x.inputs), tokens = x.tokens;
  const float *from = x.packed, *of_x = x.sums;
  int64_t unpacked = 0, tiled = 0;                       // steps of a group
  int64_t groups = 0, begun = 0, left = 0, taken = 0;  // that are unpacked, in tiles, out of them, added up
  const __mmask16 there = __mmask16((1 << count) - 1);
  Vec total[kCount];
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) total[t] = all(0.0f);
  for (int64_t step = 0; taken < begun || step < steps + kBehind; ++step) {
    if (step < steps) {
      if (unpacked == 0) source.head(room.heads[groups++ % kHeads]);
      if (++unpacked == per_group) unpacked = 0;
      source.unpack(room.codes + step % kUnpacked * kCodedBytes);
    }
    written();
    if (step >= kBehind && step < steps + kBehind) {
      const uint8_t* const codes = room.codes + (step - kBehind) % kUnpacked * kCodedBytes;
      if (begun % 2 == 0) {
        if (tiled == 0) _tile_zero(0);
        _tile_loadd(4, from, kWords * 4);
        _tile_loadd(6, codes, 64);
        _tile_dpbf16ps(0, 4, 6);
      } else {
        if (tiled == 0) _tile_zero(1);
        _tile_loadd(5, from, kWords * 4);
        _tile_loadd(7, codes, 64);
        _tile_dpbf16ps(1, 5, 7);
      }
      from += tokens * kWords;
      if (++tiled == per_group || step + 1 == steps + kBehind) tiled = 0, ++begun;
    }
    // A store waits for its products, and all that follows for the store: so those of the group before.
    if (left + 1 < begun || (left < begun && step >= steps + kBehind)) {
      if (left % 2 == 0) {
        _tile_stored(0, room.sums[left % kUnpacked], 64);
      } else {
        _tile_stored(1, room.sums[left % kUnpacked], 64);
      }
      ++left;
    }
    written();
    if (left - taken > 2 || (step >= steps + kBehind && taken < left)) {
      const float *sums = room.sums[taken % kUnpacked], *head = room.heads[taken % kHeads];
      const Vec scale = load(head);
#pragma GCC unroll 16
      for (int t = 0; t < kCount; ++t) total[t] = fma(load(sums + t * kLanes), scale, total[t]);
      if constexpr (has_minimums) {
        const Vec minimum = load(head + kLanes);
        Vec sum = all(0.0f);
        for (int64_t unit = 0; unit < per_group && taken * per_group + unit < steps; ++unit) {
          sum = sum + _mm512_maskz_loadu_ps(there, of_x + unit * tokens);
        }
        store(room.of_x, sum);  // to be read one for all lanes
        written();
#pragma GCC unroll 16
        for (int t = 0; t < kCount; ++t) total[t] = fma(minimum, all(room.of_x[t]), total[t]);
        of_x += per_group * tokens;
      }
      ++taken;
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) {
    if (t < count) store(to + t * stride, total[t] * all(factor));
  }
}

// Panels [begin, end) for `tokens` tokens, at most 16. `source(block)` gives the `Source` of 16 rows, of which the weight has
// `blocks`.
template <bool has_minimums, class SourceOf>
void multiply_coded(const SourceOf& source, int64_t blocks, int64_t per_group, float factor, const Activations& x,
                    const Output& out, int64_t begin, int64_t end, int64_t tokens) {
  CodedRoom& room = room_of_thread<CodedRoom>();
  const Tiles tiles(shapes_for(tokens));
  using Source = decltype(source(0));
  const auto multiply = tokens <= kTokens / 2 ? multiply_rows<has_minimums, kTokens / 2, Source> : multiply_rows<has_minimums, kTokens, Source>;
  for (int64_t panel = begin; panel < end; ++panel) {
    const Results results(out, panel, 0, tokens);
    const bool is_in_place = results.in_place() != nullptr;
    float* const to = is_in_place ? results.in_place() : room.results;
    const int64_t stride = is_in_place ? results.stride() : kPanel;
    for (int64_t block = 2 * panel; block < 2 * panel + 2 && block < blocks; ++block) {
      multiply(source(block), per_group, x, tokens, factor, to + block % 2 * kLanes, stride, room);
    }
    if (!is_in_place) results.put(room.results);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
