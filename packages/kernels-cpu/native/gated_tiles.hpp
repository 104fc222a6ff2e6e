// Gates and ups in tiles, 16 rows of each side by side where else 32 rows of a panel are: what comes of both goes packed to
// the next product from the L1 cache. Included by kernels of the namespace `amx` only.
#pragma once

#include "gates.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Products that have left the tiles are gated beside the tiles that follow: see `Scaled`. Results lie as `pack_tokens` puts
// them.
template <class Product>
class Gated {
 public:
  explicit Gated(const Product& product) : product_(product) {}
  ~Gated() { finish(); }

  // What tiles hold for `tokens` tokens goes to `sums` and is begun with.
  void begin(float* sums, int64_t tokens, uint8_t* to) {
    finish();
    store_sums(sums, tokens > kTokens);
    written();
    sums_ = sums, to_ = to, left_ = tokens;
  }

  void expect(int64_t calls) { some_ = (left_ + calls - 1) / calls; }
  void operator()() { left_ > 0 ? take(std::min(left_, some_)) : void(); }
  void finish() { left_ > 0 ? take(left_) : void(); }

  float gate_factor = 1.0f, up_factor = 1.0f;

 private:
  void take(int64_t count) {
    left_ -= count;
    for (; count > 0; --count, sums_ += kPanel, to_ += kWords * 4) {
      const Vec gate = load(sums_) * all(gate_factor), up = load(sums_ + kLanes) * all(up_factor);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_), (__m256i)_mm512_cvtneps_pbh(product_(gate, up)));
    }
  }

  const Product& product_;
  const float* sums_ = nullptr;
  uint8_t* to_ = nullptr;
  int64_t left_ = 0, some_ = 0;
};

// 16 numbers of `count` tokens.
template <class Product>
struct GatedResults {
  Gated<Product>& gated;
  uint8_t* to;
  int64_t count;

  void store(float* sums) const { gated.begin(sums, count, to); }
};

void multiply_gated(const WidenRows& gates, const WidenRows& ups, Activation function, const Activations& x, int64_t first,
                    int64_t last, int64_t block, const Activations& out) {
  WideRoom& room = room_of_thread<WideRoom>();
  const Tiles tiles(shapes_for(last - first));
  uint8_t* const half = reinterpret_cast<uint8_t*>(const_cast<float*>(step_of(out, block / 2, 0))) + block % 2 * 32;
  with_gates(function, [&]<class Product>(const Product& product) {
    Gated<Product> gated(product);
    const auto widen = [&](int64_t begin, int64_t end, uint8_t* to) {
      gated.gate_factor = gates(begin, end, to);
      gated.up_factor = ups(begin, end, to + 64);
    };
    const auto results = [&](int64_t token, int64_t count) {
      return GatedResults<Product>{gated, half + token * kWords * 4, count};
    };
    multiply_many(widen, x, first, last, room, results, gated);
  });
}

}  // namespace
}  // namespace modulm::MODULM_ISA
