// Packs codes into the panels of linear_int8.hpp and reads single rows of them again. Baseline code: done once, at load,
// and for the few rows of an embedding.
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

// Code `input` (of 32) of panel row `row`, put into or read from a block.
inline void put_code(Codes codes, uint8_t* block, int64_t row, int64_t input, unsigned code) {
  const int64_t quad = input / 4, at = row * 4 + input % 4;
  if (codes == Codes::bits8) {
    block[quad * 128 + at] = uint8_t(code);
    return;
  }
  const bool six = codes == Codes::bits6;
  uint8_t* half = six ? block + quad / 4 * 384 : block;
  half[(six ? quad % 4 / 2 : quad / 2) * 128 + at] |= uint8_t((code & 15) << (quad % 2 * 4));
  half[(six ? 256 : 512) + at] |= uint8_t(code >> 4 << (six ? quad % 4 * 2 : quad));
}

inline unsigned get_code(Codes codes, const uint8_t* block, int64_t row, int64_t input) {
  const int64_t quad = input / 4, at = row * 4 + input % 4;
  if (codes == Codes::bits8) return block[quad * 128 + at];
  const bool six = codes == Codes::bits6;
  const uint8_t* half = six ? block + quad / 4 * 384 : block;
  const unsigned low = half[(six ? quad % 4 / 2 : quad / 2) * 128 + at] >> (quad % 2 * 4) & 15;
  const unsigned high = half[(six ? 256 : 512) + at] >> (six ? quad % 4 * 2 : quad) & (six ? 3 : 1);
  return low | high << 4;
}

// Returns whether all codes fit.
inline bool pack_codes(const Int8Panels& weight, const CodeSource& from, int64_t panel, uint8_t* to) {
  std::memset(to, 0, size_t(weight.panel_bytes()));
  const unsigned limit = weight.codes == Codes::bits8 ? 256 : weight.codes == Codes::bits6 ? 64 : 32;
  const unsigned flip = from.is_signed ? 0x80 : 0;
  unsigned largest = 0;
  for (int64_t r = 0; r < kPanelRows && panel * kPanelRows + r < weight.rows; ++r) {
    const uint8_t* row = from.data + (panel * kPanelRows + r) * from.stride;
    for (int64_t input = 0; input < weight.inputs; ++input) {
      const unsigned code = row[input] ^ flip;
      largest = code > largest ? code : largest;
      put_code(weight.codes, to + input / kBlockInputs * block_bytes(weight.codes), r, input % kBlockInputs,
               code & (limit - 1));
    }
  }
  return largest < limit;
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
