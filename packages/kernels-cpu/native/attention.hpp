// Causal attention of a step's tokens over a paged cache.
//
// The cache of a layer is [num_blocks, 2, num_kv_heads, block_size * head_size]: for each block and head first the
// keys, transposed ([head_size, block_size], so that one vector holds a number of several tokens), then the values
// ([block_size, head_size]).
//
// Where the cache holds signed bytes, a token's keys of a head have one scale, and so do its values: float32
// [block_size] behind the bytes, which make head_size + 4 bytes a token. Four bytes lie together, so that a lane of
// 32 bits holds them: numbers of a key ([head_size / 4, block_size, 4]), tokens of values ([block_size / 4, head_size,
// 4], the last tokens of a block that is no multiple of 4 in a shorter column). A byte is from -127 to 127. The scale
// is infinite, and the bytes 0, where a number was not finite.
//
// A cache of 8-bit floats is laid out like one of floats. Each of its heads has a scale for keys and one for values, by
// which numbers are divided before they are rounded, and which belongs to the call.
//
// `attention_plan.hpp` cuts a step into units; each is computed by one thread.
#pragma once

#include <cstdint>

#include "dispatch.hpp"

namespace modulm {

enum class CacheType { float32, bfloat16, float16, int8, e4m3, e5m2 };

constexpr int64_t kLargestHead = 512;

// Numbers of the cache beside a token's head, which its scale takes.
constexpr int64_t scale_size(CacheType type) { return type == CacheType::int8 ? 4 : 0; }

// Whether scales lie at multiples of their size, and quads of a key's numbers are whole.
inline bool scales_fit(CacheType type, const void* cache, int64_t head_size) {
  return type != CacheType::int8 || (reinterpret_cast<uintptr_t>(cache) % 4 == 0 && head_size % 4 == 0);
}

// One layer in one step. Pointers are to float32, token t's head h at [t * token_stride + h * head_stride].
struct AttentionCall {
  const float *query, *key, *value;
  int64_t query_token_stride, query_head_stride;
  int64_t key_token_stride, key_head_stride;
  int64_t value_token_stride, value_head_stride;
  float* out;  // [num_tokens, num_heads, head_size]; shares no memory with the others
  void* cache;
  CacheType cache_type;
  int64_t num_heads, num_kv_heads, head_size, block_size;
  float scale;
  int32_t window;             // positions that a token sees, itself included; 0 for all
  float soft_cap;             // 0 for none
  const float* sinks;         // [num_heads] or null
  const float* alibi_slopes;  // [num_heads] or null
  const float *cos, *sin;     // [num_tokens, rope_width] or null: queries and keys are rotated already
  int64_t rope_width;
  const float *key_scales, *value_scales;  // [num_kv_heads] or null: 1 for all; of caches of 8-bit floats
  const int64_t* slots;                    // [num_tokens], where keys and values of the step go
  bool exact;            // queries and weights are not rounded
};

// Queries of one sequence over a range of its positions, for one head of keys and all heads that share it. The
// positions before `begin` and from `end` on are other units' share, or nobody sees them.
struct AttentionUnit {
  const int32_t* blocks;  // of the sequence
  int32_t first_token;    // row of the first query in the step
  int32_t num_tokens;
  int32_t first_position;  // of the first query
  int32_t begin, end;
  int32_t split, num_splits;  // which part of the context this is, of how many
  bool writes;                // its one query's key and value, which no other unit sees: just before they are read
  int64_t partial_row;        // where the results of split 0 begin, if there are several
  int64_t tile;               // counts groups of splits
};

// What the same thread does before and after a head of a unit: it asks for memory in time.
struct AttentionAround {
  const AttentionUnit *previous, *next;  // units, or null
  int64_t begin, end;                    // its heads of this unit
  int64_t next_end;                      // its heads of the next one, from 0
};

struct AttentionKernels {
  // Floats of scratch memory that `attend` needs for so many rows (queries times heads that share keys).
  int64_t (*scratch_size)(int64_t head_size, int64_t rows);
  // Floats of a row that a split leaves: sum of weighted values, largest score, sum of weights.
  int64_t (*partial_size)(int64_t head_size);
  // Write keys and values of tokens begin .. end - 1 to the cache, rotated if `cos` is there.
  void (*write)(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end);
  // Compute a unit: into `call.out`, or into `partial` where the unit is one of several splits. `around` may hasten it.
  void (*attend)(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
                 float* scratch, float* partial);
  // Join the splits of a unit's queries, which lie in `partial` one after another, into `call.out`.
  void (*join)(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const float* partial);
};

MODULM_FAMILY_OF(AttentionKernels, attention, avx2, amx)

}  // namespace modulm
