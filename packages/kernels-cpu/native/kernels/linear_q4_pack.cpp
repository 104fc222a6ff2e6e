// Into the layout of `linear_q4.hpp` and back out of it. Moves bits; its only arithmetic is a row's dequantisation.
#include "linear_q4.hpp"

#include <string.h>

namespace modulm::MODULM_ISA {
namespace {

float load(const void* from, Float type, int64_t at) {
  return type == Float::f32 ? static_cast<const float*>(from)[at] : from_f16(static_cast<const uint16_t*>(from)[at]);
}

void store(void* to, Float type, int64_t at, float value) {
  if (type == Float::f32) {
    static_cast<float*>(to)[at] = value;
  } else {
    static_cast<uint16_t*>(to)[at] = type == Float::f16 ? to_f16(value) : to_bf16(value);
  }
}

// As number `at` of scales or minimums in memory; it must be exact.
void store(uint8_t* to, ScaleType type, int64_t at, float value) {
  switch (type) {
    case ScaleType::f32: reinterpret_cast<float*>(to)[at] = value; break;
    case ScaleType::f16: reinterpret_cast<uint16_t*>(to)[at] = to_f16(value); break;
    case ScaleType::f16_byte: to[at] = uint8_t(to_f16(value) >> 7); break;
    case ScaleType::exponent: to[at] = uint8_t(__builtin_bit_cast(uint32_t, value) >> 23); break;
  }
}

// Four nibbles of the low 16 bits -> the low nibbles of four bytes.
uint32_t spread(uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
  return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
}

// Eight codes in order, the first in the lowest nibble -> the layout's dword.
uint32_t interleave(uint32_t codes) { return spread(codes & 0xffffu) | spread(codes >> 16) << 4; }

void pack_codes(const uint8_t* row, int64_t row_bytes, int64_t first_byte, int64_t count_bytes, int64_t lanes,
                uint8_t* to) {
  for (int64_t at = 0; at < count_bytes; at += 4, to += lanes * 4) {
    const int64_t left = row_bytes - (first_byte + at);  // less than 4 at the end of a row that is no multiple of 8
    uint32_t codes = 0;
    if (left > 0) memcpy(&codes, row + first_byte + at, size_t(left < 4 ? left : 4));
    codes = interleave(codes);
    memcpy(to, &codes, 4);
  }
}

void pack_row(const Q4View& weight, const Q4Source& source, int64_t row, int64_t lane, uint8_t* block) {
  const int64_t row_bytes = weight.in_features / 2, count_bytes = weight.units_per_group * weight.unit / 2;
  for (int64_t g = 0; g < weight.groups; ++g) {
    uint8_t* group = block + g * weight.group_bytes();
    const int64_t at = row * weight.groups + g;
    store(group, weight.scale_type, lane, load(source.scales, source.type, at));
    if (weight.kind == Q4Kind::minimums && weight.zero_points) {
      group[weight.scale_bytes() + lane] = static_cast<const uint8_t*>(source.minimums)[at];
    } else if (weight.kind == Q4Kind::minimums) {
      store(group + weight.scale_bytes(), weight.scale_type, lane, load(source.minimums, source.type, at));
    }
    pack_codes(source.codes + row * row_bytes, row_bytes, g * count_bytes, count_bytes, weight.lanes,
               group + weight.head_bytes() + lane * 4);
  }
}

void pack(const Q4View& weight, const Q4Source& source, int64_t first, int64_t last) {
  for (int64_t b = first; b < last; ++b) {
    uint8_t* block = weight.data + b * weight.block_bytes();
    const int64_t rows = weight.out_features - b * weight.lanes;
    if (rows < weight.lanes) memset(block, 0, size_t(weight.block_bytes()));
    for (int64_t lane = 0; lane < weight.lanes && lane < rows; ++lane) {
      pack_row(weight, source, b * weight.lanes + lane, lane, block);
    }
  }
}

float value_of(const Q4View& weight, uint32_t code, float scale, float minimum) {
  if (weight.kind == Q4Kind::codebook) return scale * weight.values[code];
  return scale * float(code) + minimum;
}

float minimum_of(const Q4View& weight, const uint8_t* group, int64_t lane, float scale) {
  if (weight.kind == Q4Kind::minimums && weight.zero_points) return -float(group[weight.scale_bytes() + lane]) * scale;
  if (weight.kind == Q4Kind::minimums) return number_at(group + weight.scale_bytes(), weight.scale_type, lane);
  return -float(weight.offset) * scale;
}

void unpack_row(const Q4View& weight, int64_t row, const Q4Out& out, int64_t at) {
  const int64_t lane = row % weight.lanes, group_inputs = weight.units_per_group * weight.unit;
  const uint8_t* block = weight.data + row / weight.lanes * weight.block_bytes();
  for (int64_t g = 0; g < weight.groups; ++g) {
    const uint8_t* group = block + g * weight.group_bytes();
    const float scale = number_at(group, weight.scale_type, lane), minimum = minimum_of(weight, group, lane, scale);
    const uint8_t* codes = group + weight.head_bytes() + lane * 4;
    const int64_t first = g * group_inputs, left = weight.in_features - first;
    for (int64_t i = 0; i < group_inputs && i < left; ++i) {
      const uint32_t byte = codes[i / 8 * weight.lanes * 4 + i % 4], code = i % 8 < 4 ? byte & 15u : byte >> 4;
      store(out.data, out.type, at + first + i, value_of(weight, code, scale, minimum));
    }
  }
}

void rows(const Q4View& weight, const int64_t* index, int64_t begin, int64_t end, const Q4Out& out) {
  for (int64_t i = begin; i < end; ++i) unpack_row(weight, index[i], out, i * out.stride);
}

void widen(const void* x, Float type, int64_t stride, int64_t begin, int64_t end, int64_t size, int64_t padded,
           float* out) {
  for (int64_t row = begin; row < end; ++row) {
    float* to = out + row * padded;
    const uint16_t* halves = static_cast<const uint16_t*>(x) + row * stride;
    if (type == Float::f32) {
      memcpy(to, static_cast<const float*>(x) + row * stride, size_t(size) * 4);
    } else if (type == Float::bf16) {
      for (int64_t i = 0; i < size; ++i) to[i] = from_bf16(halves[i]);
    } else {
      for (int64_t i = 0; i < size; ++i) to[i] = from_f16(halves[i]);
    }
    for (int64_t i = size; i < padded; ++i) to[i] = 0.0f;
  }
}

}  // namespace

extern const PackQ4Kernels pack_q4;
const PackQ4Kernels pack_q4{pack, rows, widen};

}  // namespace modulm::MODULM_ISA
