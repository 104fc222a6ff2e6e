// Reading and writing blocks of the cache; queries and keys are rotated on the way, where a step asks for it.
//
// Included only by files that are compiled once per instruction set. The layout is described in `attention.hpp`.
#pragma once

#include "attention.hpp"
#include "attention_products.hpp"

namespace modulm::MODULM_ISA {
namespace {

inline int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Where one layer's blocks are, for one head.
template <class T>
struct Blocks {
  T* cache;
  int64_t block_stride, value_offset, block_size, head_size;

  Blocks(const AttentionCall& call, int64_t kv_head)
      : block_stride(2 * call.num_kv_heads * call.block_size * call.head_size),
        value_offset(call.num_kv_heads * call.block_size * call.head_size),
        block_size(call.block_size),
        head_size(call.head_size) {
    cache = static_cast<T*>(call.cache) + kv_head * block_size * head_size;
  }

  // First number of the key at an offset in a block; the next is block_size further.
  T* key(int64_t block, int64_t offset) const { return cache + block * block_stride + offset; }
  T* value(int64_t block, int64_t offset) const {
    return cache + block * block_stride + value_offset + offset * head_size;
  }
};

// put(d, number) for each number of a head, rotated by the token's row of the tables if there are any.
template <class Put>
inline void rotated(const AttentionCall& call, const float* x, int64_t token, const Put& put) {
  const int64_t width = call.cos == nullptr ? 0 : call.rope_width, half = width / 2;
  const float *cos = call.cos + token * width, *sin = call.sin + token * width;
  for (int64_t d = 0; d < half; ++d) put(d, x[d] * cos[d] - x[d + half] * sin[d]);
  for (int64_t d = half; d < width; ++d) put(d, x[d] * cos[d] + x[d - half] * sin[d]);
  for (int64_t d = width; d < call.head_size; ++d) put(d, x[d]);
}

template <class T>
void write(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end) {
  const Blocks<T> blocks(call, kv_head);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t block = call.slots[token] / call.block_size, offset = call.slots[token] % call.block_size;
    const float* key = call.key + token * call.key_token_stride + kv_head * call.key_head_stride;
    const float* value = call.value + token * call.value_token_stride + kv_head * call.value_head_stride;
    T *to_key = blocks.key(block, offset), *to_value = blocks.value(block, offset);
    rotated(call, key, token, [=](int64_t d, float x) { narrow(x, to_key + d * call.block_size); });
    for (int64_t d = 0; d < call.head_size; ++d) narrow(value[d], to_value + d);
  }
}

template <class T>
inline void widen_run(const T* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}

// Keys of positions begin .. end - 1 of the tile that starts at `start`, as float32 [head_size, kTile].
template <class T>
inline void copy_keys(const Blocks<T>& blocks, const int32_t* table, int64_t start, int64_t begin, int64_t end,
                      float* to) {
  for (int64_t position = begin; position < end;) {
    const int64_t offset = position % blocks.block_size;
    const int64_t left = blocks.block_size - offset, count = left < end - position ? left : end - position;
    const T* from = blocks.key(table[position / blocks.block_size], offset);
    float* column = to + (position - start);
    for (int64_t d = 0; d < blocks.head_size; ++d) widen_run(from + d * blocks.block_size, column + d * kTile, count);
    position += count;
  }
}

// Values of the same positions, as float32 [kTile, width]; what is behind the head's size is zero.
template <class T>
inline void copy_values(const Blocks<T>& blocks, const int32_t* table, int64_t start, int64_t begin, int64_t end,
                        int64_t width, float* to) {
  for (int64_t position = begin; position < end; ++position) {
    const T* from = blocks.value(table[position / blocks.block_size], position % blocks.block_size);
    float* row = to + (position - start) * width;
    widen_run(from, row, blocks.head_size);
    for (int64_t d = blocks.head_size; d < width; ++d) row[d] = 0.0f;
  }
}

}  // namespace
}  // namespace modulm::MODULM_ISA
