// Which units a step's attention falls into. Made once per step, checked once; every layer of a KV group runs it.
//
// How a sequence is cut depends on that sequence alone, not on its neighbours and not on the number of threads, so its
// results do not either. Compiled for the baseline only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention.hpp"
#include "pool.hpp"

namespace modulm {

class AttentionPlan {
 public:
  // Copies what it needs. Throws std::invalid_argument for anything that does not describe a step.
  AttentionPlan(const int32_t* query_start, int64_t num_seqs, const int32_t* seq_lens, const int32_t* block_table,
                int64_t table_width, const int64_t* slots, int64_t num_tokens, int64_t block_size);

  int64_t num_tokens() const { return int64_t(slots_.size()); }
  int64_t block_size() const { return block_size_; }

  // Write keys and values of the step, then compute its attention. `call` is complete but for `slots`. Throws
  // std::invalid_argument if the step uses blocks that a cache of `num_blocks` does not have.
  void run(AttentionCall call, int64_t num_blocks, const AttentionKernels& kernels, Pool& pool);

 private:
  // The units for layers that see `window` positions and have `group` heads for each head of keys; units of few rows are
  // `split` to about so many positions.
  struct Units {
    int32_t window;
    int64_t group, split;
    std::vector<AttentionUnit> units;
    int64_t num_tiles = 0;         // with several splits
    int64_t num_partial_rows = 0;  // of one head of keys
    int64_t most_rows = 0;
    int64_t cost = 0;  // pairs of rows and positions
    int32_t lowest_block = 0, highest_block = 0;
  };

  const Units& units_of(int32_t window, int64_t group, int64_t head_size);
  void cut(Units& found, int64_t sequence) const;
  void note_blocks(Units& found, const AttentionUnit& unit) const;
  void write(const AttentionCall& call, const AttentionKernels& kernels, Pool& pool) const;
  void attend(const AttentionCall& call, const Units& work, const AttentionKernels& kernels, Pool& pool);

  const int64_t block_size_;
  std::vector<int32_t> query_start_, seq_lens_, blocks_;
  std::vector<int64_t> slots_, first_block_;  // first_block_: where each sequence's row begins in `blocks_`
  struct Tokens {
    int64_t begin, end;
  };
  std::vector<Tokens> written_first_;  // of sequences with several: all are in the cache before any unit reads
  int64_t highest_slot_ = -1;
  std::vector<std::unique_ptr<Units>> units_;
  std::vector<float> partials_;
  std::vector<std::atomic<int32_t>> ready_;  // splits that are done, by tile and head; 0 between calls
  std::mutex one_call_;
};

}  // namespace modulm
