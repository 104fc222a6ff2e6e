// The inner product of dense kernels: a few tokens by one panel of rows over one chunk of inputs, in registers.
//
// Also serves weights that are not dense, once their values lie in a float32 buffer. Included by kernels only.
#pragma once

#include "lanes.hpp"
#include "linear_dense.hpp"

namespace modulm::MODULM_ISA {
namespace {

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own AVX-512 intrinsics
#endif

constexpr int kPanel = int(kPanelRows);
constexpr Element kBf16Pair = Element(5);  // bf16 seen as words of two

// Tokens per tile, and how many vectors of rows it takes for so many tokens: tokens * vectors sums, the vectors of
// weights and a value of x must fit into the registers, and the sums be enough to hide how long an fma takes.
#if defined(__AVX512F__)
constexpr int kTile = 12;  // 32 registers of 16 lanes
constexpr int vectors_for(int) { return 2; }
#elif defined(__AVX2__)
constexpr int kTile = 6;  // 16 registers of 8 lanes
constexpr int vectors_for(int tokens) { return tokens <= 3 ? 4 : 2; }
#else
constexpr int kTile = 4;  // 16 registers of 4 lanes at least
constexpr int vectors_for(int tokens) { return tokens == 1 ? 8 : tokens == 2 ? 4 : 2; }
#endif

// Pairs of bfloat16: the low halves are numbers of the first input, the high halves of the second.
template <int input>
inline Vec load_bf16_of_pair(const uint8_t* from) {
#if defined(__AVX512F__)
  const __m512i both = _mm512_loadu_si512(from);
  return _mm512_castsi512_ps(input == 0 ? _mm512_slli_epi32(both, 16)
                                        : _mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))));
#elif defined(__AVX2__)
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm256_castsi256_ps(input == 0 ? _mm256_slli_epi32(both, 16)
                                        : _mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000u))));
#else
  typedef uint32_t Unsigned __attribute__((vector_size(16)));
  Unsigned both;
  __builtin_memcpy(&both, from, sizeof(both));
  return reinterpret_cast<Vec>(input == 0 ? both << 16 : both & 0xffff0000u);
#endif
}

// Numbers in float16 as integers of 16 bits.
typedef int16_t HalfBits __attribute__((vector_size(2 * kLanes)));

inline Vec widen_halves(HalfBits bits) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps((__m256i)bits);
#elif defined(__AVX2__)
  return _mm256_cvtph_ps((__m128i)bits);
#else
  Half halves[kLanes];
  __builtin_memcpy(halves, &bits, sizeof(bits));
  return load(halves);
#endif
}

// Pairs of 8-bit floats, the first input in the low byte, as what their bits mean in float16: e4m3, whose exponent is
// biased otherwise, as 2^-8 of it, and its NaN as a number.
template <Element element, int input>
inline Vec load_float8_of_pair(const uint8_t* from) {
  HalfBits bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  if constexpr (input == 0) bits <<= 8;
  if constexpr (element == Element::e4m3) return widen_halves((bits >> 1) & int16_t(0xbf80));
  return widen_halves(bits & int16_t(0xff00));
}

inline void store_halves(Half* to, Vec value) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) narrow(value[i], to + i);
#endif
}
constexpr int64_t kMostTokens = 16 * kTile;  // so many sums of one panel lie on the stack

// Word `input` (0 or 1) of pair `pair` of a chunk, for the lanes from `row` on.
template <Element element, int input>
inline Vec load_weights(const uint8_t* chunk, int64_t pair, int row) {
  const int64_t at = (pair * 2 + input) * kPanel + row;
  if constexpr (element == Element::f32 || element == kBf16Pair) {
    return load(reinterpret_cast<const float*>(chunk) + at);
  }
  if constexpr (element == Element::f16) return load(reinterpret_cast<const Half*>(chunk) + at);
  if constexpr (element == Element::e4m3 || element == Element::e5m2) {
    return load_float8_of_pair<element, input>(chunk + (pair * kPanel + row) * 2);
  }
  return load_bf16_of_pair<input>(chunk + (pair * kPanel + row) * 4);
}

template <Element element>
inline Vec add_product(Vec weights, Vec x, Vec total) {
#if defined(__AVX512BF16__)
  if constexpr (element == kBf16Pair) return _mm512_dpbf16_ps(total, (__m512bh)weights, (__m512bh)x);
#endif
  return fma(weights, x, total);
}

template <Element element, int input, int tokens, int vectors>
inline void add_input(const uint8_t* chunk, int64_t pair, int row, const float* x, Vec (&total)[tokens][vectors]) {
  Vec weights[vectors];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) weights[v] = load_weights<element, input>(chunk, pair, row + v * kLanes);
#pragma GCC unroll 16
  for (int t = 0; t < tokens; ++t) {
    const Vec value = all(x[t * kChunk + pair * 2 + input]);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) total[t][v] = add_product<element>(weights[v], value, total[t][v]);
  }
}

constexpr int64_t kBytesAhead = 32 << 10, kBytesNear = 12 << 10;
constexpr int kFewestToFetch = 5;  // tokens from which on kBytesAhead are asked for

// Asks for weights that are read some time later: a processor does not look beyond a page of memory, and would wait at
// each. With few tokens it fetches most by its own guesses, which begin the sooner at a page for what is asked for in it
// before; farther ahead it would have to wait for all that was asked (measured: 4 tokens lose a tenth by it, 6 gain a
// quarter). float32 may be a chunk that was widened. Inlined by force: GCC drops calls of a function that does nothing else.
template <Element element, int tokens>
[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* chunk, int64_t pair) {
  constexpr bool is_float8 = element == Element::e4m3 || element == Element::e5m2;
  if constexpr (element == Element::f32) return;
  constexpr int64_t away = tokens < kFewestToFetch && !is_float8 ? kBytesNear : kBytesAhead;
  constexpr int64_t bytes = 2 * kPanel * (element == kBf16Pair ? 4 : bytes_of(element));
#pragma GCC unroll 4
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(chunk + pair * bytes + away + at, 0, 2);
}

// sums[token][row] += x[token][word] * weight[word][row], for `tokens` tokens and `vectors` vectors of rows. Not
// inlined: among others it would not get all registers.
template <Element element, int tokens, int vectors>
[[gnu::noinline]] void tile_part(const uint8_t* chunk, int64_t pairs, int row, const float* x, float* sums) {
  Vec total[tokens][vectors];
#pragma GCC unroll 16
  for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) total[t][v] = load(sums + t * kPanel + row + v * kLanes);
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (row == 0) fetch_ahead<element, tokens>(chunk, pair);
    add_input<element, 0>(chunk, pair, row, x, total);
    add_input<element, 1>(chunk, pair, row, x, total);
  }
#pragma GCC unroll 16
  for (int t = 0; t < tokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + t * kPanel + row + v * kLanes, total[t][v]);
  }
}

// As above for all rows of the panel and a number of tokens that is known at run time only: at most kTile.
template <Element element, int tokens = kTile>
inline void tile(int count, const uint8_t* chunk, int64_t pairs, const float* x, float* sums) {
  if constexpr (tokens > 0) {
    if (count != tokens) return tile<element, tokens - 1>(count, chunk, pairs, x, sums);
    constexpr int vectors = vectors_for(tokens);
    for (int row = 0; row < kPanel; row += vectors * kLanes) {
      tile_part<element, tokens, vectors>(chunk, pairs, row, x, sums);
    }
  }
}

inline void widen_row(const void* x, Float type, int64_t at, int64_t count, float* to) {
  if (type == Float::f32) {
    __builtin_memcpy(to, static_cast<const float*>(x) + at, size_t(count) * 4);
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(x) + at;
  int64_t i = 0;
  if (type == Float::f16) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(reinterpret_cast<const Half*>(from) + i));
    for (; i < count; ++i) to[i] = from_f16(from[i]);
  } else {
    for (; i < count; ++i) to[i] = from_bf16(from[i]);
  }
}

inline void store_row(const float* sums, int64_t count, void* to, Float type, int64_t at) {
  if (type == Float::f32 && count == kPanel) {
    for (int i = 0; i < kPanel; i += kLanes) store(static_cast<float*>(to) + at + i, load(sums + i));
    return;
  }
  if (type == Float::f32) {
    __builtin_memcpy(static_cast<float*>(to) + at, sums, size_t(count) * 4);
    return;
  }
  alignas(64) uint16_t bits[kPanel];
  if (type == Float::f16) {
    for (int i = 0; i < kPanel; i += kLanes) store_halves(reinterpret_cast<Half*>(bits) + i, load(sums + i));
  } else {
    for (int i = 0; i < kPanel; ++i) bits[i] = to_bf16(sums[i]);
  }
  __builtin_memcpy(static_cast<uint16_t*>(to) + at, bits, size_t(count) * 2);
}

inline void store_panel(const float* sums, int64_t panel, int64_t first, int64_t last, const Output& out) {
  const int64_t row = panel * kPanelRows, left = out.rows - row, count = left < kPanelRows ? left : kPanelRows;
  for (int64_t token = first; token < last; ++token) {
    store_row(sums + (token - first) * kPanel, count, out.data, out.type, token * out.stride + row);
  }
}

// Weights as they lie in memory.
struct Stored {
  const uint8_t* data;
  int64_t panel_bytes;
  int64_t chunk_bytes;

  const uint8_t* operator()(int64_t panel, int64_t chunk) const {
    return data + panel * panel_bytes + chunk * chunk_bytes;
  }
};

// Panels [begin, end) for tokens [first, last), at most kMostTokens. `source(panel, chunk)` returns where the weights
// of that chunk lie, in the layout of `element`; it may fill a buffer of its own.
template <Element element, class Source>
inline void multiply_panels(Source& source, const Activations& x, const Output& out, int64_t begin, int64_t end,
                            int64_t first, int64_t last) {
  alignas(64) float sums[kMostTokens * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    __builtin_memset(sums, 0, size_t(last - first) * kPanel * sizeof(float));
    for (int64_t chunk = 0; chunk < chunks_of(x.words()); ++chunk) {
      const uint8_t* weights = source(panel, chunk);
      const int64_t left = x.words() - chunk * kChunk, pairs = left < kChunk ? (left + 1) / 2 : kChunk / 2;
      for (int64_t token = first; token < last; token += kTile) {
        const int count = last - token < kTile ? int(last - token) : kTile;
        tile<element>(count, weights, pairs, x.at(chunk, token), sums + (token - first) * kPanel);
      }
    }
    store_panel(sums, panel, first, last, out);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
