// A packed 4-bit weight that owns its memory, and how its work is shared out over the pool. Trusts its arguments;
// included by bindings only, never by kernels.
#pragma once

#include <algorithm>

#include "linear_dense_memory.hpp"
#include "linear_q4.hpp"
#include "packed_weight.hpp"
#include "pool.hpp"

namespace modulm {

class Q4Weight : public PackedWeight {
 public:
  // Everything of `view` but `data` and `lanes`, which come from `isa`. `exact` keeps activations in float32.
  Q4Weight(Q4View view, const Q4Source& source, Isa isa, bool exact, Pool& pool)
      : view_(view), isa_(isa), exact_(exact) {
    view_.lanes = linear_q4(isa).lanes;
    memory_ = Bytes::beside_others(view_.blocks() * view_.block_bytes());
    view_.data = memory_.data();
    const auto pack = pack_q4(isa).pack;
    pool.run(view_.blocks(), blocks_per_piece(), [&, pack](int64_t first, int64_t last) {
      pack(view_, source, first, last);
    });
  }

  const Q4View& view() const { return view_; }
  int64_t size_bytes() const { return memory_.size(); }

  Isa isa() const { return isa_; }

  int64_t out_features() const override { return view_.out_features; }
  int64_t in_features() const override { return view_.in_features; }

  Stream stream() const override {
    const int64_t blocks = view_.blocks(), shared = blocks / (8 * pool().num_threads());
    return {view_.data, blocks, view_.block_bytes(), std::min(blocks_per_piece(), in_pairs(shared))};
  }

  void multiply(const float* x, int64_t stride, int64_t tokens, float* out, int64_t out_stride, bool) const override {
    linear(x, Float::f32, stride, tokens, {out, Float::f32, out_stride}, pool());
  }

  const TokenPacker* packer(int64_t tokens, bool) const override {
    const PanelKernels<Q4View>* widened = exact_ ? nullptr : widened_q4(isa_, tokens);
    return widened == nullptr ? nullptr : &widened->tokens;
  }

  void multiply_panels(const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first, int64_t last,
                       bool) const override {
    widened_q4(isa_, kFewestTiled)->multiply(view_, x, out, begin, end, first, last);
  }

  bool adds(int64_t tokens, bool) const override {
    return !exact_ && tokens > kFewTiled && widened_q4(isa_, tokens) != nullptr;
  }

  WidenRows widener(int64_t block, bool) const override {
    return [this, block](int64_t begin, int64_t end, uint8_t* to) {
      return widened_q4(isa_, kFewestTiled)->widen(view_, block, begin, end, to);
    };
  }

  void gather(const int64_t* index, int64_t count, float* out, int64_t out_stride) const override {
    rows(index, count, {out, Float::f32, out_stride}, pool());
  }

  // out = x @ W.T for x [num_tokens, in_features] of `type`, rows `stride` numbers apart.
  void linear(const void* x, Float type, int64_t stride, int64_t num_tokens, const Q4Out& out, Pool& pool) const {
    exact_ ? linear_exact(x, type, stride, num_tokens, out, pool) : linear_fast(x, type, stride, num_tokens, out, pool);
  }

  // out[i, :] = W[index[i], :]
  void rows(const int64_t* index, int64_t count, const Q4Out& out, Pool& pool) const {
    const auto unpack = pack_q4(isa_).rows;
    pool.run(count, std::max<int64_t>(1, 8192 / view_.in_features), [&, unpack](int64_t begin, int64_t end) {
      unpack(view_, index, begin, end, out);
    });
  }

 private:
  static constexpr int64_t kPieceBytes = 48 << 10;  // of weights: stays in the nearer caches while tokens pass
  static constexpr int64_t kPieceTokens = 64;
  static constexpr int64_t kFewTokens = 32;
  static constexpr int64_t kInlineNumbers = 4 << 10;  // so many activations are converted faster than a worker wakes

  int64_t blocks_per_piece() const { return in_pairs(kPieceBytes / view_.block_bytes()); }

  // Kernels may take two blocks at once, and one that is left takes nearly as long.
  static int64_t in_pairs(int64_t blocks) { return std::max<int64_t>(2, (blocks + 1) / 2 * 2); }

  void linear_fast(const void* x, Float type, int64_t stride, int64_t num_tokens, const Q4Out& out, Pool& pool) const {
    const int64_t size = view_.in_features;
    if (const PanelKernels<Q4View>* widened = widened_q4(isa_, num_tokens)) {
      const Output to{out.data, out.type, view_.out_features, out.stride};
      return modulm::multiply_panels(*widened, view_, x, type, stride, num_tokens, size, to, pool);
    }
    int64_t tile = linear_q4(isa_).max_tokens;
    while (tile / 2 >= num_tokens) tile /= 2;
    const int64_t bytes = QuantizedRows::bytes_for(num_tokens, size, view_.unit, tile);
    uint8_t* memory = scratch(bytes);
    const QuantizedRows quantized = QuantizedRows::in(memory, num_tokens, size, view_.unit, tile);
    const auto quantize = activations(isa_).quantize_rows;
    over_tokens(num_tokens, pool, [&, quantize](int64_t begin, int64_t end) {
      quantize(x, type, stride, begin, end, size, quantized);
    });
    const auto kernel = linear_q4(isa_).fast;
    if (num_tokens <= kFewTokens) return in_order(quantized, {memory, bytes}, num_tokens, out, pool);
    in_pieces(num_tokens, pool, [&, kernel](int64_t first, int64_t last, int64_t begin, int64_t end) {
      kernel(view_, quantized, first, last, begin, end, out, {view_.data + memory_.size(), view_.data});
    });
  }

  void linear_exact(const void* x, Float type, int64_t stride, int64_t num_tokens, const Q4Out& out, Pool& pool) const {
    const int64_t size = view_.in_features, padded = view_.units() * view_.unit;
    float* widened = reinterpret_cast<float*>(scratch(num_tokens * padded * 4));
    const auto widen = pack_q4(isa_).widen;
    over_tokens(num_tokens, pool, [&, widen](int64_t begin, int64_t end) {
      widen(x, type, stride, begin, end, size, padded, widened);
    });
    const auto kernel = linear_q4(isa_).exact;
    in_pieces(num_tokens, pool, [&, kernel](int64_t first, int64_t last, int64_t begin, int64_t end) {
      kernel(view_, widened, first, last, begin, end, out);
    });
  }

  template <class Body>
  void over_tokens(int64_t num_tokens, Pool& pool, const Body& body) const {
    pool.run(num_tokens, std::max<int64_t>(1, kInlineNumbers / view_.in_features), body);
  }

  // With few tokens memory is the limit: each thread reads its share in order, and what it reads next meanwhile.
  void in_order(const QuantizedRows& x, const Prepared& prepared, int64_t num_tokens, const Q4Out& out, Pool& pool) const {
    const auto kernel = linear_q4(isa_).fast;
    const Stream all = stream();
    pool.run(all.blocks, all.grain, [&, kernel](int64_t first, int64_t last) {
      const int share = pool.share_of(first, all.blocks, all.grain);
      if (pool.begins_share(first, all.blocks, all.grain)) prepared.ask_for();
      const uint8_t* next = next_.data == nullptr ? nullptr : next_.begin_of(share, pool);
      kernel(view_, x, first, last, 0, num_tokens, out, {all.begin_of(share + 1, pool), next});
    });
  }

  // Pieces are some blocks times some tokens, so that a small matrix with many tokens has enough of them too.
  template <class Body>
  void in_pieces(int64_t num_tokens, Pool& pool, const Body& body) const {
    const int64_t shares = 4 * int64_t(pool.num_threads()), blocks = view_.blocks();
    const int64_t tiles = (num_tokens + kPieceTokens - 1) / kPieceTokens;
    const int64_t grain = std::min(blocks_per_piece(), in_pairs(blocks * tiles / shares));
    const int64_t grains = (blocks + grain - 1) / grain;
    pool.run(tiles * grains, 1, [&](int64_t piece, int64_t end) {
      for (; piece < end; ++piece) {
        const int64_t first = piece % grains * grain, begin = piece / grains * kPieceTokens;
        body(first, std::min(first + grain, blocks), begin, std::min(begin + kPieceTokens, num_tokens));
      }
    });
  }

  Q4View view_;
  Isa isa_;
  bool exact_;
  Bytes memory_;
};

}  // namespace modulm
