// Packs codes into the panels of linear_int8.hpp and reads single rows of them again. Baseline code: it runs once, at
// load, and for the few rows of an embedding.
#pragma once

#include "linear_dense_arguments.hpp"
#include "linear_int8_vectors.hpp"

namespace modulm {

// One byte per input, or, up to 4 bits, two inputs to a byte, the first in the low nibble. Rows are `stride` bytes apart.
// Signed bytes become codes with zero 128.
struct CodeSource {
  const uint8_t* data;
  int64_t stride;
  bool is_signed;

  // The codes from `input` on, a multiple of 4, of which there are `left` in the row: four as bytes of a word, the first
  // the lowest; zeros for those past the row.
  template <bool in_pairs>
  uint32_t four(int64_t row, int64_t input, int64_t left) const {
    const uint8_t* from = data + row * stride + (in_pairs ? input / 2 : input);
    uint32_t word = 0;
    if (left >= 4) {
      std::memcpy(&word, from, in_pairs ? 2 : 4);
    } else {
      std::memcpy(&word, from, size_t(in_pairs ? (left + 1) / 2 : left));
    }
    if constexpr (!in_pairs) return is_signed ? word ^ 0x80808080u : word;
    word = (word | word << 8) & 0x00ff00ffu;
    return (word | word << 4) & 0x0f0f0f0fu;
  }
};

// Puts the four codes of one quad of panel row `row` into a block of zeros. Codes lie in the bytes of `four`.
template <int bits>
inline void put_quad(uint8_t* block, int64_t row, int64_t quad, uint32_t four) {
  const auto merge = [&](int64_t at, uint32_t part) {
    uint32_t there;
    std::memcpy(&there, block + at + row * 4, 4);
    there |= part;
    std::memcpy(block + at + row * 4, &there, 4);
  };
  const QuadPlace place = place_of(Codes(bits), int(quad));
  const uint32_t low = ((1u << place.low_bits) - 1) * 0x01010101u, high = ((1u << place.high_bits) - 1) * 0x01010101u;
  merge(place.low, (four & low) << place.low_shift);
  if (place.high_bits > 0) merge(place.high, (four >> place.low_bits & high) << place.high_shift);
}

// Code `input` (of 32) of panel row `row`.
inline unsigned get_code(Codes codes, const uint8_t* block, int64_t row, int64_t input) {
  const QuadPlace place = place_of(codes, int(input / 4));
  const uint8_t* at = block + row * 4 + input % 4;
  const unsigned low = unsigned(at[place.low]) >> place.low_shift & ((1u << place.low_bits) - 1);
  const unsigned high = unsigned(at[place.high]) >> place.high_shift & ((1u << place.high_bits) - 1);
  return low | high << place.low_bits;
}

// Returns whether all codes fit; those that do not lose their upper bits.
template <int bits>
bool pack_codes_of(const Int8Panels& weight, const CodeSource& from, int64_t panel, uint8_t* to) {
  std::memset(to, 0, size_t(weight.panel_bytes()));
  constexpr uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
  uint32_t too_large = 0;
  for (int64_t r = 0; r < kPanelRows && panel * kPanelRows + r < weight.rows; ++r) {
    for (int64_t input = 0; input < weight.inputs; input += 4) {
      const uint32_t four = from.four<(bits <= 4)>(panel * kPanelRows + r, input, weight.inputs - input);
      too_large |= four & ~mask;
      put_quad<bits>(to + input / kBlockInputs * (bits * kQuadBytes), r, input % kBlockInputs / 4, four & mask);
    }
  }
  return too_large == 0;
}

inline bool pack_codes(const Int8Panels& weight, const CodeSource& from, int64_t panel, uint8_t* to) {
  switch (bits_of(weight.codes)) {
    case 2: return pack_codes_of<2>(weight, from, panel, to);
    case 3: return pack_codes_of<3>(weight, from, panel, to);
    case 4: return pack_codes_of<4>(weight, from, panel, to);
    case 5: return pack_codes_of<5>(weight, from, panel, to);
    case 6: return pack_codes_of<6>(weight, from, panel, to);
    default: return pack_codes_of<8>(weight, from, panel, to);
  }
}

// Numbers [rows, columns] -> [panel][column][32], with zeros past the last row.
template <class Number>
void pack_numbers(const void* from, int64_t rows, int64_t columns, int64_t panel, uint8_t* to) {
  const Number* source = static_cast<const Number*>(from);
  Number* target = reinterpret_cast<Number*>(to) + panel * columns * kPanelRows;
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t row = panel * kPanelRows + r;
      target[column * kPanelRows + r] = row < rows ? source[row * columns + column] : Number(0);
    }
  }
}

// Numbers of one row of a weight.
struct Int8Row {
  const Int8Panels& weight;
  int64_t panel, lane;

  float number(const uint8_t* from, Float type) const {
    if (type == Float::f16) return from_f16(reinterpret_cast<const uint16_t*>(from)[lane]);
    return reinterpret_cast<const float*>(from)[lane];
  }
  float multiple(const uint8_t* from, int shift, const uint8_t* coarse, int64_t group) const {
    const int nibble = from[lane] >> shift & 15;
    const int times = weight.steps.multiples == Multiples::bytes  ? int8_t(from[lane])
                      : weight.steps.multiples == Multiples::both ? nibble
                                                                  : 2 * nibble + 1;
    return number(coarse + weight.coarse_at(panel, group), Float::f16) * weight.steps.unit * float(times);
  }
  float scale(int64_t group) const {
    const uint8_t* from = weight.scales + weight.scale_at(panel, group);
    const int shift = weight.steps.multiples == Multiples::odd ? int(group % 2 * 4) : 0;
    return weight.steps.span > 0 ? multiple(from, shift, weight.steps.scales, group) : number(from, weight.scale_type);
  }
  // What is added to code * scale.
  float minimum(int64_t group, float scale) const {
    if (!weight.has_minimums()) return scale * float(-weight.zero);
    const uint8_t* from = weight.minimums + weight.minimum_at(panel, group);
    if (weight.kind == Zero::points) return scale * float(-int(from[lane]));
    return weight.steps.span > 0 ? multiple(from, 4, weight.steps.minimums, group) : number(from, weight.scale_type);
  }
};

// Code `input` of row `row` of a panel, as it is multiplied.
inline int number_of(const Int8Panels& weight, const uint8_t* panel, int64_t row, int64_t input) {
  const uint8_t* block = panel + input / kBlockInputs * weight.bytes_of_block();
  if (weight.codes == Codes::vectors) {
    return int(Eight(weight.vectors, block, input % kBlockInputs / 8).codes(row) >> input % 8 * 8 & 255);
  }
  const unsigned stored = get_code(weight.codes, block, row, input % kBlockInputs);
  return in_table(weight.codes) ? weight.table[stored] : int(stored);
}

inline void put_int8_row(const Int8Panels& weight, int64_t row, void* to, Float type, int64_t at) {
  const uint8_t* panel = weight.data + row / kPanelRows * weight.panel_bytes();
  const Int8Row numbers{weight, row / kPanelRows, row % kPanelRows};
  for (int64_t first = 0; first < weight.inputs; first += weight.unit) {
    const int64_t group = first / weight.unit / weight.group;
    const float scale = numbers.scale(group), minimum = numbers.minimum(group, scale);
    for (int64_t input = first; input < first + weight.unit && input < weight.inputs; ++input) {
      const int code = number_of(weight, panel, row % kPanelRows, input);
      put(weight.kind == Zero::shift ? float(code - weight.zero) * scale : float(code) * scale + minimum, to, type,
          at + input);
    }
  }
}

}  // namespace modulm
