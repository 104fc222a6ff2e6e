// Products of many tokens with 2 to 8 bits in tiles of bfloat16: scales and minimums go into the weights, so that sums run
// over all inputs, where integers must be scaled unit by unit.
#include "linear_int8_scales.hpp"
#include "linear_widened_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

template <Codes width>
class Widen {
 public:
  explicit Widen(const Int8Panels& weight) : weight_(weight) {}

  // A block of 32 inputs.
  void operator()(int64_t panel, int64_t block, uint8_t* to) const { rows(panel, 0, kPanel, block, to); }

  // The same of rows [first, last) of a panel.
  void rows(int64_t panel, int first, int last, int64_t block, uint8_t* to) const {
    const Scales scales(weight_, panel);
    const uint8_t* codes = weight_.data + panel * weight_.panel_bytes() + block * weight_.bytes_of_block();
    alignas(64) uint8_t wide[width == Codes::vectors ? 1024 : 64];
    if constexpr (width == Codes::vectors) {
      widen_blocks<width>(weight_, codes, 1, wide), codes = wide;
    } else {
      for (int64_t at = 0; at < block_bytes(width); at += 64) {  // of the next panel, as few tokens wait for memory
        __builtin_prefetch(codes + weight_.panel_bytes() + at, 0, 2);
      }
    }
    for (int row = first; row < last; row += kLanes, to += 64) {
      if (weight_.unit == 32) {
        widen_unit<0, 8>(scales, codes, block, row, to);
      } else {
        widen_unit<0, 4>(scales, codes, 2 * block, row, to);
        if (2 * block + 1 < weight_.units()) {
          widen_unit<4, 4>(scales, codes, 2 * block + 1, row, to);
        } else {
          clear_half(to);
        }
      }
    }
  }

 private:
  template <int first, int count>
  void widen_unit(const Scales& scales, const uint8_t* block, int64_t unit, int row, uint8_t* to) const {
    const int64_t group = scales.group_of(unit);
    const Vec plain = scales.scale(group, row), scale = plain * all(kOfCut);
    const Vec minimum = weight_.has_minimums() ? scales.minimum(group, row, plain) * all(kOfCut)
                                               : scale * all(-float(weight_.zero));
    quads_in_turn<count>([&](auto number) {
      constexpr int quad = first + int(number);
      const Ints codes = quad_codes<unpacked, quad>(weight_, block, row);
      const auto value = [&](auto byte) {
        const Ints code = both(shifted_right<byte * 8>(codes), all_ints(255));
        return fma(to_floats(code), scale, minimum);
      };
      uint8_t* words = to + 2 * quad * kWordBytes;
      store_pairs(words, value(std::integral_constant<int, 0>()), value(std::integral_constant<int, 1>()));
      store_pairs(words + kWordBytes, value(std::integral_constant<int, 2>()), value(std::integral_constant<int, 3>()));
    });
  }

  static constexpr Codes unpacked = width == Codes::vectors ? Codes::bits8 : width;
  const Int8Panels& weight_;
};

float widen(const Int8Panels& weight, int64_t block, int64_t begin, int64_t end, uint8_t* to) {
  with_width(weight.codes, [&]<Codes width>() {
    const Widen<width> widen(weight);
    const int row = int(block % 2) * kLanes;
    for (int64_t step = begin; step < end; ++step, to += kStepBytes) widen.rows(block / 2, row, row + kLanes, step, to);
  });
  return 1.0f;
}

void multiply(const Int8Panels& weight, const Activations& x, const Output& out, int64_t begin, int64_t end,
              int64_t first, int64_t last) {
  with_width(weight.codes, [&]<Codes width>() {
    multiply_widened(Widen<width>(weight), 1.0f, x, out, begin, end, first, last);
  });
}

}  // namespace

extern const PanelKernels<Int8Panels> widened_int8;
const PanelKernels<Int8Panels> widened_int8{tiled_tokens, multiply, widen};

}  // namespace modulm::MODULM_ISA
