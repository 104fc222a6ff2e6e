// Gates and ups in tiles, 16 rows of each side by side where else 32 rows of a panel are: what comes of both goes packed to
// the next product from the L1 cache. Included by kernels of the namespace `amx` only.
#pragma once

#include "gates.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

// 16 numbers of `count` tokens, as `pack_tokens` puts them.
template <class Product>
struct GatedResults {
  const Product& product;
  const float gate_factor, up_factor;
  uint8_t* to;
  int64_t count;

  void store(float* sums) const {
    store_sums(sums, count > kTokens);
    written();
    for (int64_t token = 0; token < count; ++token, sums += kPanel) {
      const Vec gate = load(sums) * all(gate_factor), up = load(sums + kLanes) * all(up_factor);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + token * kWords * 4), (__m256i)_mm512_cvtneps_pbh(product(gate, up)));
    }
  }
};

void multiply_gated(const WidenRows& gates, const WidenRows& ups, Activation function, const Activations& x, int64_t first,
                    int64_t last, int64_t block, const Activations& out) {
  WideRoom& room = room_of_thread<WideRoom>();
  const Tiles tiles(shapes_for(last - first));
  float gate_factor = 1.0f, up_factor = 1.0f;
  const auto widen = [&](int64_t begin, int64_t end, uint8_t* to) {
    gate_factor = gates(begin, end, to);
    up_factor = ups(begin, end, to + 64);
  };
  uint8_t* const half = reinterpret_cast<uint8_t*>(const_cast<float*>(step_of(out, block / 2, 0))) + block % 2 * 32;
  with_gates(function, [&](const auto& product) {
    const auto results = [&](int64_t token, int64_t count) {
      return GatedResults<std::remove_cvref_t<decltype(product)>>{product, gate_factor, up_factor,
                                                                   half + token * kWords * 4, count};
    };
    Nothing nothing;
    multiply_many(widen, x, first, last, room, results, nothing);
  });
}

}  // namespace
}  // namespace modulm::MODULM_ISA
