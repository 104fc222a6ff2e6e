// Packs codes into the panels of linear_int8.hpp and reads single rows of them again. Baseline code: it runs once, at
// load, and for the few rows of an embedding.
#pragma once

#include <cstring>

#include "linear_dense_arguments.hpp"
#include "linear_int8.hpp"

namespace modulm {

// One byte per input, rows `stride` apart. Signed bytes become codes with zero 128.
struct CodeSource {
  const uint8_t* data;
  int64_t stride;
  bool is_signed;
};

// Puts the four codes of one quad of panel row `row` into a block of zeros. Codes lie in the bytes of `four`.
inline void put_quad(Codes codes, uint8_t* block, int64_t row, int64_t quad, uint32_t four) {
  const auto merge = [&](int64_t at, uint32_t bits) {
    uint32_t there;
    std::memcpy(&there, block + at + row * 4, 4);
    there |= bits;
    std::memcpy(block + at + row * 4, &there, 4);
  };
  if (codes == Codes::bits8) return merge(quad * 128, four);
  const bool six = codes == Codes::bits6;
  const int64_t half = six ? quad / 4 * 384 : 0;
  merge(half + (six ? quad % 4 / 2 : quad / 2) * 128, (four & 0x0f0f0f0fu) << (quad % 2 * 4));
  merge(half + (six ? 256 : 512), (four >> 4 & 0x03030303u) << (six ? quad % 4 * 2 : quad));
}

// Code `input` (of 32) of panel row `row`.
inline unsigned get_code(Codes codes, const uint8_t* block, int64_t row, int64_t input) {
  const int64_t quad = input / 4, at = row * 4 + input % 4;
  if (codes == Codes::bits8) return block[quad * 128 + at];
  const bool six = codes == Codes::bits6;
  const uint8_t* half = six ? block + quad / 4 * 384 : block;
  const unsigned low = half[(six ? quad % 4 / 2 : quad / 2) * 128 + at] >> (quad % 2 * 4) & 15;
  const unsigned high = half[(six ? 256 : 512) + at] >> (six ? quad % 4 * 2 : quad) & (six ? 3 : 1);
  return low | high << 4;
}

// Returns whether all codes fit; those that do not lose their upper bits.
inline bool pack_codes(const Int8Panels& weight, const CodeSource& from, int64_t panel, uint8_t* to) {
  std::memset(to, 0, size_t(weight.panel_bytes()));
  const uint32_t limit = weight.codes == Codes::bits8 ? 0xffu : weight.codes == Codes::bits6 ? 0x3fu : 0x1fu;
  const uint32_t mask = limit * 0x01010101u, flip = from.is_signed ? 0x80808080u : 0;
  uint32_t too_large = 0;
  for (int64_t r = 0; r < kPanelRows && panel * kPanelRows + r < weight.rows; ++r) {
    const uint8_t* row = from.data + (panel * kPanelRows + r) * from.stride;
    for (int64_t input = 0; input < weight.inputs; input += 4) {
      const int64_t left = weight.inputs - input;
      uint32_t four = 0;
      if (left >= 4) {
        std::memcpy(&four, row + input, 4);
      } else {
        std::memcpy(&four, row + input, size_t(left));
      }
      four ^= flip;
      too_large |= four & ~mask;
      put_quad(weight.codes, to + input / kBlockInputs * block_bytes(weight.codes), r, input % kBlockInputs / 4,
               four & mask);
    }
  }
  return too_large == 0;
}

// Scales or minimums [rows, groups] -> [panel][group][32], with zeros past the last row.
template <class Number>
void pack_scales(const Int8Panels& weight, const void* from, int64_t panel, uint8_t* to) {
  const Number* source = static_cast<const Number*>(from);
  Number* target = reinterpret_cast<Number*>(to + weight.scale_at(panel, 0));
  for (int64_t group = 0; group < weight.groups(); ++group) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t row = panel * kPanelRows + r;
      target[group * kPanelRows + r] = row < weight.rows ? source[row * weight.groups() + group] : Number(0);
    }
  }
}

inline float scale_of(const Int8Panels& weight, const uint8_t* scales, int64_t row, int64_t group) {
  const uint8_t* at = scales + weight.scale_at(row / kPanelRows, group);
  if (weight.scale_type == Float::f16) return from_f16(reinterpret_cast<const uint16_t*>(at)[row % kPanelRows]);
  return reinterpret_cast<const float*>(at)[row % kPanelRows];
}

inline void put_int8_row(const Int8Panels& weight, int64_t row, void* to, Float type, int64_t at) {
  const uint8_t* panel = weight.data + row / kPanelRows * weight.panel_bytes();
  for (int64_t first = 0; first < weight.inputs; first += weight.unit) {
    const int64_t group = first / weight.unit / weight.group;
    const float scale = scale_of(weight, weight.scales, row, group);
    const float minimum = weight.kind == Zero::minimums ? scale_of(weight, weight.minimums, row, group)
                                                        : scale * float(-weight.zero);
    for (int64_t input = first; input < first + weight.unit && input < weight.inputs; ++input) {
      const uint8_t* block = panel + input / kBlockInputs * block_bytes(weight.codes);
      const int code = int(get_code(weight.codes, block, row % kPanelRows, input % kBlockInputs));
      put(weight.kind == Zero::shift ? float(code - weight.zero) * scale : float(code) * scale + minimum, to, type,
          at + input);
    }
  }
}

}  // namespace modulm
