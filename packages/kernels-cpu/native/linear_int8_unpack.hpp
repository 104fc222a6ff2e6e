// Blocks of codes that are vectors (linear_int8_vectors.hpp) -> blocks of 8 bits, in which all tokens of a call are multiplied
// by them. Included by kernels only.
#pragma once

#include "linear_int8_codes.hpp"
#include "linear_int8_vectors.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int64_t kVectorBytesAsked = 8 << 10;  // how far ahead of their use they are asked for

#if defined(__AVX2__)

// `to`, and `more` in the lanes where bit `row` and those that follow it are set.
inline Ints either_where(Ints to, const uint8_t* bits, int row, Ints more) {
#if defined(__AVX512F__)
  return _mm512_mask_or_epi32(to, __mmask16(read<uint16_t>(bits + row / 8)), to, more);
#else
  const Ints single = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return either(to, both(more, _mm256_cmpeq_epi32(both(all_ints(bits[row / 8]), single), single)));
#endif
}

template <int planes>
inline Ints places_of(const Eight& eight, int row, int vector) {
  const uint8_t* from = eight.places + vector * eight.kind.place_bytes();
  Ints places = load_as_ints<uint8_t>(from + row);
  quads_in_turn<planes>([&](auto plane) {
    places = either_where(places, from + kPanelRows + plane * kPanelRows / 8, row, all_ints(256 << plane));
  });
  return places;
}

// Signs of the other 4 inputs, 4 bits a row, where 3 of each are stored: the fourth makes the number of all 8 even.
template <class Bits>
inline Bits with_even(Bits first, Bits threes) {
  const Bits odd = first ^ threes, pairs = odd ^ odd >> 2;
  return threes | ((pairs ^ pairs >> 1) & Bits(0x1111111111111111u)) << 3;
}

#endif

#if defined(__AVX512F__)

inline Ints negated(Ints codes, uint64_t where) {
  return _mm512_mask_sub_epi8(codes, __mmask64(where), _mm512_setzero_si512(), codes);
}
inline Ints plus_bytes(Ints a, Ints b) { return _mm512_add_epi8(a, b); }

template <int length, int planes>
inline void look_up(const Eight& eight, int row, Ints& first, Ints& second) {
  const uint8_t* table = eight.kind.table;
  const Ints places = places_of<planes>(eight, row, 0);
  // Into zeros: into what is undefined, a gather waits for whatever the register held.
  const Ints zero = _mm512_setzero_si512();
  if constexpr (length == 4) {
    first = _mm512_mask_i32gather_epi32(zero, 0xffff, places, table, 4);
    second = _mm512_mask_i32gather_epi32(zero, 0xffff, places_of<planes>(eight, row, 1), table, 4);
  } else {
    const Ints low = _mm512_mask_i32gather_epi64(zero, 0xff, _mm512_castsi512_si256(places), table, 8);
    const Ints high = _mm512_mask_i32gather_epi64(zero, 0xff, _mm512_extracti64x4_epi64(places, 1), table, 8);
    const Ints even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    first = _mm512_permutex2var_epi32(low, even, high);
    second = _mm512_permutex2var_epi32(low, either(even, all_ints(1)), high);
  }
}

template <int signs>
inline void negate(const Eight& eight, int row, Ints& first, Ints& second) {
  const uint8_t* rest = eight.signs + kPanelRows / 2;
  const uint64_t of_first = read<uint64_t>(eight.signs + row / 2);
  first = negated(first, of_first);
  if constexpr (signs == 8) {
    second = negated(second, read<uint64_t>(rest + row / 2));
  } else {
    const uint64_t stored = read<uint32_t>(rest + row * 3 / 8) | uint64_t(read<uint16_t>(rest + row * 3 / 8 + 4)) << 32;
    second = negated(second, with_even(of_first, uint64_t(_pdep_u64(stored, 0x7777777777777777u))));
  }
}

#elif defined(__AVX2__)

inline Ints negated(Ints codes, uint32_t where) {
  const Ints bytes = _mm256_setr_epi64x(0, kOnes, 2 * kOnes, 3 * kOnes), single = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
  const Ints chosen = _mm256_cmpeq_epi8(both(_mm256_shuffle_epi8(all_ints(int32_t(where)), bytes), single), single);
  return _mm256_sub_epi8(_mm256_xor_si256(codes, chosen), chosen);
}
inline Ints plus_bytes(Ints a, Ints b) { return _mm256_add_epi8(a, b); }

// Loads, as gathers of older processors take longer.
template <int length, int planes>
inline void look_up(const Eight& eight, int row, Ints& first, Ints& second) {
  const uint8_t* table = eight.kind.table;
  alignas(32) uint32_t places[8], others[8];
  store_ints(places, places_of<planes>(eight, row, 0));
  if constexpr (length == 4) {
    store_ints(others, places_of<planes>(eight, row, 1));
    const auto four = [table](uint32_t place) { return read<int32_t>(table + place * 4); };
    const auto all_of = [&](const uint32_t* of) {
      return _mm256_setr_epi32(four(of[0]), four(of[1]), four(of[2]), four(of[3]), four(of[4]), four(of[5]), four(of[6]),
                               four(of[7]));
    };
    first = all_of(places), second = all_of(others);
  } else {
    const auto two = [&](int number) {
      const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table + places[number] * 8));
      return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64*>(table + places[number + 1] * 8)));
    };
    const __m256 even = _mm256_castsi256_ps(_mm256_setr_m128i(two(0), two(4)));
    const __m256 odd = _mm256_castsi256_ps(_mm256_setr_m128i(two(2), two(6)));
    first = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88));
    second = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd));
  }
}

template <int signs>
inline void negate(const Eight& eight, int row, Ints& first, Ints& second) {
  const uint8_t* rest = eight.signs + kPanelRows / 2;
  const uint32_t of_first = read<uint32_t>(eight.signs + row / 2);
  first = negated(first, of_first);
  if constexpr (signs == 8) {
    second = negated(second, read<uint32_t>(rest + row / 2));
  } else {
    uint32_t threes = read<uint16_t>(rest + row * 3 / 8) | uint32_t(rest[row * 3 / 8 + 2]) << 16;
    threes = (threes & 0x00000fffu) | (threes & 0x00fff000u) << 4;
    threes = (threes & 0x003f003fu) | (threes & 0x0fc00fc0u) << 2;
    threes = (threes & 0x07070707u) | (threes & 0x38383838u) << 1;
    second = negated(second, with_even(of_first, threes));
  }
}

#endif

// Both quads of 8 inputs for kLanes rows from `row` on.
template <int length, int signs, int planes>
inline void eight_codes(const Eight& eight, int row, Ints& first, Ints& second) {
#if defined(__AVX2__)
  look_up<length, planes>(eight, row, first, second);
  if (signs == 0 && eight.kind.shift != 0) {
    const Ints shift = either_where(all_ints(0), eight.shifts, row, all_bytes(eight.kind.shift));
    first = plus_bytes(first, shift), second = plus_bytes(second, shift);
  }
  if constexpr (signs != 0) negate<signs>(eight, row, first, second);
#else
  uint8_t bytes[2][kLanes * 4];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t codes = eight.codes(row + lane);
    __builtin_memcpy(bytes[0] + lane * 4, &codes, 4);
    __builtin_memcpy(bytes[1] + lane * 4, reinterpret_cast<const uint8_t*>(&codes) + 4, 4);
  }
  first = load_bytes(bytes[0]), second = load_bytes(bytes[1]);
#endif
}

// Calls body.operator()<length, signs, planes>() for vectors of a kind.
template <class Body>
inline void with_vectors(const Vectors& kind, const Body& body) {
  const auto with_planes = [&]<int length, int signs>() {
    kind.planes == 0   ? body.template operator()<length, signs, 0>()
    : kind.planes == 1 ? body.template operator()<length, signs, 1>()
    : kind.planes == 2 ? body.template operator()<length, signs, 2>()
                       : body.template operator()<length, signs, 3>();
  };
  const auto with_signs = [&]<int length>() {
    kind.signs == 0   ? with_planes.template operator()<length, 0>()
    : kind.signs == 7 ? with_planes.template operator()<length, 7>()
                      : with_planes.template operator()<length, 8>();
  };
  kind.length == 4 ? with_signs.template operator()<4>() : with_signs.template operator()<8>();
}

// A copy with what the compiler knows of vectors; it would read them anew after each store.
template <int length, int signs, int planes>
inline Vectors known(const Vectors& of) {
  return {of.table, length, planes, signs, signs == 0 ? of.shift : 0, signs == 0 && of.has_wide_shifts};
}

inline void ask_ahead(const Eight& eight) {
  __builtin_prefetch(eight.places + kVectorBytesAsked, 0, 2);
  __builtin_prefetch(eight.signs + kVectorBytesAsked, 0, 2);
}

template <int length, int signs, int planes>
[[gnu::noinline]] void unpack_vectors(const Vectors& of, const uint8_t* from, int64_t blocks, uint8_t* to) {
  const Vectors kind = known<length, signs, planes>(of);
  for (int64_t number = 0; number < blocks * (kBlockInputs / 8); ++number, to += 2 * kQuadBytes) {
    const Eight eight(kind, from + number / 4 * kind.bytes(), number % 4);
    ask_ahead(eight);
    for (int row = 0; row < kPanel; row += kLanes) {
      Ints first, second;
      eight_codes<length, signs, planes>(eight, row, first, second);
      store_bytes(to + row * 4, first);
      store_bytes(to + kQuadBytes + row * 4, second);
    }
  }
}

// Blocks of any width -> blocks of 8 bits.
template <Codes width>
inline void widen_blocks(const Int8Panels& weight, const uint8_t* from, int64_t blocks, uint8_t* to) {
  if constexpr (width == Codes::vectors) {
    with_vectors(weight.vectors, [&]<int length, int signs, int planes>() {
      unpack_vectors<length, signs, planes>(weight.vectors, from, blocks, to);
    });
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    quads_in_turn<8>([&](auto quad) {
      for (int row = 0; row < int(kPanelRows); row += kLanes) {
        store_bytes(to + block * 1024 + quad * kQuadBytes + row * 4,
                    quad_codes<width, int(quad)>(weight, from + block * block_bytes(width), row));
      }
    });
  }
}

// Quad `quad` of a panel, which is not known to the compiler, as unsigned bytes that are multiplied.
template <Codes width>
inline Ints any_quad_codes(const Int8Panels& weight, const uint8_t* panel, int row, int64_t quad) {
  if constexpr (width == Codes::vectors) {
    const uint8_t* block = panel + quad / 8 * weight.vectors.bytes();
    Ints first{}, second{};
    with_vectors(weight.vectors, [&]<int length, int signs, int planes>() {
      eight_codes<length, signs, planes>(Eight(weight.vectors, block, quad % 8 / 2), row, first, second);
    });
    return quad % 2 == 0 ? first : second;
  } else {
    const uint8_t* block = panel + quad / 8 * block_bytes(width);
    if constexpr (width == Codes::bits8) return load_bytes(block + row * 4 + quad % 8 * kQuadBytes);
    Ints codes{};
    quads_in_turn<8>([&](auto number) {
      if (number == quad % 8) codes = quad_codes<width, int(number)>(weight, block, row);
    });
    return codes;
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
