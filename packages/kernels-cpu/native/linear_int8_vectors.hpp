// Codes that are vectors of a table (`Vectors` in linear_int8.hpp), in the bits that files have. A block of 32 inputs of a
// panel: where shifts are for 32 inputs, a bit for each row. Then four times, for 8 inputs: for each vector 32 bytes of
// places, and 32 bits for each plane of their upper bits; a bit of shifts for each row; signs, 4 bits for each row for the
// first 4 inputs, and 4 or 3 for each row for the others.
//
// Here is what packs them and reads single ones: baseline code. `linear_int8_unpack.hpp` makes blocks of 8 bits of them.
#pragma once

#include <cstring>

#include "linear_int8.hpp"

namespace modulm {
namespace {  // also included by kernels, whose functions must not be taken for these

constexpr uint64_t kOnes = 0x0101010101010101u;

template <class Number>
inline Number read(const uint8_t* from) {
  Number number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

// Where 8 inputs of a block lie.
struct Eight {
  const Vectors& kind;
  const uint8_t *places, *shifts, *signs;

  Eight(const Vectors& of, const uint8_t* block, int64_t number) : kind(of) {
    places = block + of.head_bytes() + number * of.eight_bytes();
    const uint8_t* after = places + 8 / of.length * of.place_bytes();
    shifts = of.has_wide_shifts ? block : after;
    signs = after + of.shift_bytes();
  }

  unsigned place(int64_t row, int vector) const {
    const uint8_t* from = places + vector * kind.place_bytes();
    unsigned place = from[row];
    for (int plane = 0; plane < kind.planes; ++plane) place |= bit(from + kPanelRows + plane * kPanelRows / 8, row) << (8 + plane);
    return place;
  }

  // Bit i is set where input i is negated.
  unsigned signs_of(int64_t row) const {
    if (kind.signs == 0) return 0;
    unsigned all = signs[row / 2] >> row % 2 * 4 & 15;
    for (int i = 0; i < kind.signs - 4; ++i) all |= bit(signs + kPanelRows / 2, row * (kind.signs - 4) + i) << (4 + i);
    return kind.signs == 7 ? all | unsigned(__builtin_popcount(all) & 1) << 7 : all;
  }

  // The codes of a row as bytes of a word, the first the lowest.
  uint64_t codes(int64_t row) const {
    uint64_t codes;
    if (kind.length == 8) {
      codes = read<uint64_t>(kind.table + place(row, 0) * 8);
    } else {
      const uint64_t second = read<uint32_t>(kind.table + place(row, 1) * 4);
      codes = read<uint32_t>(kind.table + place(row, 0) * 4) | second << 32;
    }
    if (kind.shift != 0) codes += bit(shifts, row) * uint64_t(kind.shift) * kOnes;
    const uint64_t chosen = signs_of(row) * kOnes & 0x8040201008040201u;  // each byte its bit
    const uint64_t negated = (chosen + 0x7f * kOnes) >> 7 & kOnes;
    return (codes ^ negated * 255) + negated;  // 256 less: 128 is zero, and 0 no code
  }

 private:
  static unsigned bit(const uint8_t* from, int64_t number) { return from[number / 8] >> number % 8 & 1u; }
};

// Places of vectors [rows, inputs / length], their uppermost bit being the one that shifts where there is such, and signs
// [rows, inputs / 8], a byte each.
struct VectorSource {
  const uint16_t* places;
  const uint8_t* signs;
  int64_t count;  // of the table
};

// Row `row` of a panel for 8 inputs, into zeros.
inline void put_eight(const Eight& to, int64_t row, const uint16_t* places, unsigned signs) {
  const auto set = [](const uint8_t* at, int64_t number, unsigned bit) {
    const_cast<uint8_t*>(at)[number / 8] |= uint8_t(bit << number % 8);
  };
  const Vectors& kind = to.kind;
  for (int vector = 0; vector < 8 / kind.length; ++vector) {
    const uint8_t* at = to.places + vector * kind.place_bytes();
    const_cast<uint8_t*>(at)[row] = uint8_t(places[vector]);
    for (int plane = 0; plane < kind.planes; ++plane) {
      set(at + kPanelRows + plane * kPanelRows / 8, row, places[vector] >> (8 + plane) & 1u);
    }
  }
  if (kind.shift != 0) set(to.shifts, row, places[0] >> (8 + kind.planes) & 1u);
  for (int i = 0; i < kind.signs; ++i) {
    const int64_t others = kind.signs - 4;
    i < 4 ? set(to.signs, row * 4 + i, signs >> i & 1u)
          : set(to.signs + kPanelRows / 2, row * others + i - 4, signs >> i & 1u);
  }
}

// Returns whether all places are in the table.
inline bool pack_vectors(const Int8Panels& weight, const VectorSource& from, int64_t panel, uint8_t* to) {
  std::memset(to, 0, size_t(weight.panel_bytes()));
  const int64_t eights = weight.inputs / 8, vectors = 8 / weight.vectors.length;
  const int bits = 8 + weight.vectors.planes;
  const auto is_known = [&](unsigned place) {
    return int64_t(place & ((1u << bits) - 1)) < from.count && place >> bits <= unsigned(weight.vectors.shift != 0);
  };
  bool fit = true;
  for (int64_t number = 0; number < eights; ++number) {
    const Eight eight(weight.vectors, to + number / 4 * weight.vectors.bytes(), number % 4);
    for (int64_t r = 0; r < kPanelRows && panel * kPanelRows + r < weight.rows; ++r) {
      const int64_t at = (panel * kPanelRows + r) * eights + number;
      for (int64_t i = 0; i < vectors; ++i) fit = fit && is_known(from.places[at * vectors + i]);
      put_eight(eight, r, from.places + at * vectors, from.signs == nullptr ? 0u : from.signs[at]);
    }
  }
  return fit;
}

}  // namespace
}  // namespace modulm
