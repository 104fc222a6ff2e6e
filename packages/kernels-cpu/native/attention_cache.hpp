// Blocks of the cache, and writing to them; queries and keys are rotated on the way, where a step asks for it.
//
// Included only by files that are compiled once per instruction set. The layout is described in `attention.hpp`.
#pragma once

#include <type_traits>

#include "attention.hpp"
#include "attention_tile.hpp"
#include "integer_lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

// Numbers that lie at one distance from each other.
template <class T>
struct Column {
  T* first;
  int64_t step;
};

// Where one layer's blocks are, for one head.
template <class T>
struct Blocks {
  static constexpr bool kHasScales = std::is_same_v<std::remove_const_t<T>, int8_t>;
  static constexpr int kBeside = kHasScales ? kQuad : 1;  // numbers of a key that lie together; values that do
  using Scale = std::conditional_t<std::is_const_v<T>, const float, float>;

  T* cache;
  int64_t block_size, head_size;
  int64_t chunk;  // numbers of a block's keys or values, scales included
  int64_t value_offset, block_stride;

  Blocks(T* memory, int64_t num_kv_heads, int64_t tokens, int64_t size)
      : cache(memory),
        block_size(tokens),
        head_size(size),
        chunk(tokens * (size + (kHasScales ? scale_size(CacheType::int8) : 0))),
        value_offset(num_kv_heads * chunk),
        block_stride(2 * value_offset) {}

  Blocks(const AttentionCall& call, int64_t kv_head)
      : Blocks(static_cast<T*>(call.cache), call.num_kv_heads, call.block_size, call.head_size) {
    cache += kv_head * chunk;
  }

  // First number of the key at an offset in a block; the next (or the next quad) is a block's row further.
  T* key(int64_t block, int64_t offset) const { return cache + block * block_stride + offset * kBeside; }
  // First number of a value; of kBeside of them, where the offset is a multiple of that.
  T* value(int64_t block, int64_t offset) const {
    return cache + block * block_stride + value_offset + offset * head_size;
  }
  Column<T> value_column(int64_t block, int64_t offset) const {
    const int64_t first = offset / kBeside * kBeside, left = block_size - first;
    return {value(block, first) + (offset - first), left < kBeside ? left : kBeside};
  }
  Scale* key_scale(int64_t block, int64_t offset) const { return scales(key(block, 0)) + offset; }
  Scale* value_scale(int64_t block, int64_t offset) const { return scales(value(block, 0)) + offset; }

 private:
  Scale* scales(T* codes) const { return reinterpret_cast<Scale*>(codes + block_size * head_size); }
};

// A head's numbers, rotated by the token's row of the tables if there are any, times `scale`.
inline void rotate(const AttentionCall& call, const float* x, int64_t token, float scale, float* to) {
  const int64_t width = call.cos == nullptr ? 0 : call.rope_width, half = width / 2;
  const float *cos = call.cos + token * width, *sin = call.sin + token * width;
  int64_t d = 0;
  for (; d + kLanes <= half; d += kLanes) {
    const Vec first = load(x + d), second = load(x + half + d), factor = all(scale);
    store(to + d, (first * load(cos + d) - second * load(sin + d)) * factor);
    store(to + half + d, (second * load(cos + half + d) + first * load(sin + half + d)) * factor);
  }
  for (; d < half; ++d) {
    to[d] = (x[d] * cos[d] - x[d + half] * sin[d]) * scale;
    to[d + half] = (x[d + half] * cos[d + half] + x[d] * sin[d + half]) * scale;
  }
  for (d = width; d < call.head_size; ++d) to[d] = x[d] * scale;
}

inline const float* key_of(const AttentionCall& call, int64_t kv_head, int64_t token) {
  return call.key + token * call.key_token_stride + kv_head * call.key_head_stride;
}
inline const float* value_of(const AttentionCall& call, int64_t kv_head, int64_t token) {
  return call.value + token * call.value_token_stride + kv_head * call.value_head_stride;
}

inline float scale_of(const float* scales, int64_t kv_head) { return scales == nullptr ? 1.0f : scales[kv_head]; }

template <class T>
inline void narrow_all(const float* x, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) narrow(x[i], to + i);
}
#if defined(__F16C__)
inline void narrow_all(const float* x, int64_t size, Half* to) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
  }
  for (; i < size; ++i) narrow(x[i], to + i);
}
#endif

template <class T>
void write_token(const AttentionCall& call, const Blocks<T>& blocks, int64_t kv_head, int64_t token, int64_t block,
                 int64_t offset) {
  float numbers[kLargestHead];
  T codes[kLargestHead];
  const int64_t size = call.head_size;
  const float key_scale = scale_of(call.key_scales, kv_head), value_scale = scale_of(call.value_scales, kv_head);
  const auto scale = [&](const float* x, float by) {
    for (int64_t d = 0; d < size; ++d) numbers[d] = x[d] / by;
    return numbers;
  };
  rotate(call, key_of(call, kv_head, token), token, 1.0f, numbers);
  narrow_all(sizeof(T) == 1 ? scale(numbers, key_scale) : numbers, size, codes);
  T* to_key = blocks.key(block, offset);
  for (int64_t d = 0; d < size; ++d) to_key[d * call.block_size] = codes[d];
  const float* value = value_of(call, kv_head, token);
  narrow_all(sizeof(T) == 1 ? scale(value, value_scale) : value, size, blocks.value(block, offset));
}

// Largest magnitude; infinite where one is not finite.
inline float largest_magnitude(const float* x, int64_t size) {
  int32_t most = 0;  // compared as bits, where NaN is larger than infinity and that larger than all numbers
  for (int64_t i = 0; i < size; ++i) {
    const int32_t bits = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most >= 0x7f800000 ? INFINITY : __builtin_bit_cast(float, most);
}

// Numbers -> signed bytes; returns what 1 stands for, which is infinite where a number is not finite.
inline float to_bytes(const float* x, int64_t size, int8_t* codes) {
  const float most = largest_magnitude(x, size);
  const bool is_usual = most >= 0x1p-100f && most < INFINITY;
  const float inverse = 127.0f / most, magic = 12582912.0f;  // 1.5 * 2^23: nearest even, in the low bits
  for (int64_t i = 0; i < size; ++i) {
    codes[i] = int8_t(__builtin_bit_cast(int32_t, (is_usual ? x[i] * inverse : 0.0f) + magic));
  }
  return is_usual || most == INFINITY ? most / 127.0f : 0.0f;
}

template <>
inline void write_token(const AttentionCall& call, const Blocks<int8_t>& blocks, int64_t kv_head, int64_t token,
                 int64_t block, int64_t offset) {
  float numbers[kLargestHead];
  int8_t codes[kLargestHead];
  const int64_t size = call.head_size;
  rotate(call, key_of(call, kv_head, token), token, 1.0f, numbers);
  *blocks.key_scale(block, offset) = to_bytes(numbers, size, codes);
  int8_t* to_key = blocks.key(block, offset);
  for (int64_t d = 0; d < size; d += kQuad) __builtin_memcpy(to_key + d * call.block_size, codes + d, kQuad);
  *blocks.value_scale(block, offset) = to_bytes(value_of(call, kv_head, token), size, codes);
  const Column<int8_t> value = blocks.value_column(block, offset);
  for (int64_t d = 0; d < size; ++d) value.first[d * value.step] = codes[d];
}

template <class T>
void write(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end) {
  const Blocks<T> blocks(call, kv_head);
  for (int64_t token = begin; token < end; ++token) {
    write_token(call, blocks, kv_head, token, call.slots[token] / call.block_size, call.slots[token] % call.block_size);
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
