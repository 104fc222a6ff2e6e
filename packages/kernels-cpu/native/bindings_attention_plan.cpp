#include "attention_plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace modulm {
namespace {

// Queries times heads: enough to use a tile of keys often, small enough to share out.
constexpr int64_t kRowsPerUnit = 192;
constexpr int64_t kRowsToSplit = 32;  // units with no more rows than this are split along the context
constexpr int64_t kShortestSplit = 256, kMostSplits = 32;
constexpr int64_t kSplitNumbers = 5 << 13;  // of a head's keys in a split: memory is read faster without a break
constexpr int64_t kEvenTo = 16;             // positions: splits begin at multiples of it
constexpr int64_t kCostToShare = 1024;  // pairs of rows and positions; less is done before another thread wakes up
constexpr int64_t kTokensAtOnce = 32;   // that one thread writes to the cache

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

int64_t divided_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Memory of this thread, kept between calls.
float* scratch(int64_t size) {
  constexpr int64_t kAlignment = 64 / sizeof(float);
  thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < size + kAlignment) memory.resize(size_t(size + kAlignment));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

}  // namespace

AttentionPlan::AttentionPlan(const int32_t* query_start, int64_t num_seqs, const int32_t* seq_lens,
                             const int32_t* block_table, int64_t table_width, const int64_t* slots, int64_t num_tokens,
                             int64_t block_size)
    : block_size_(block_size),
      query_start_(query_start, query_start + num_seqs + 1),
      seq_lens_(seq_lens, seq_lens + num_seqs),
      slots_(slots, slots + num_tokens) {
  require(block_size >= 1, "attention: block_size must be positive");
  require(query_start_.front() == 0 && query_start_.back() == num_tokens,
          "attention: query_start must go from 0 to the number of slots in slot_mapping");
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int64_t count = int64_t(query_start_[i + 1]) - query_start_[i];
    require(count >= 0, "attention: query_start must ascend");
    require(seq_lens_[i] >= count, "attention: seq_lens must include the tokens of the step");
    const int64_t used = divided_up(seq_lens_[i], block_size);
    require(used <= table_width, "attention: block_table has fewer blocks than seq_lens need");
    if (count > 1) {
      for (int64_t token = query_start_[i]; token < query_start_[i + 1]; token += kTokensAtOnce) {
        written_first_.push_back({token, std::min<int64_t>(token + kTokensAtOnce, query_start_[i + 1])});
      }
    }
    first_block_.push_back(int64_t(blocks_.size()));
    blocks_.insert(blocks_.end(), block_table + i * table_width, block_table + i * table_width + used);
  }
  for (int64_t slot : slots_) {
    require(slot >= 0, "attention: slot_mapping must not be negative");
    highest_slot_ = std::max(highest_slot_, slot);
  }
}

const AttentionPlan::Units& AttentionPlan::units_of(int32_t window, int64_t group, int64_t head_size) {
  const int64_t split = std::clamp(kSplitNumbers / head_size, kShortestSplit, 3 * kShortestSplit);
  for (const auto& known : units_) {
    if (known->window == window && known->group == group && known->split == split) return *known;
  }
  auto found = std::make_unique<Units>();
  found->window = window;
  found->group = group;
  found->split = split;
  for (int64_t i = 0; i < int64_t(seq_lens_.size()); ++i) cut(*found, i);
  // The longest first, or a thread that takes one at the end keeps the others waiting. Splits are alike.
  std::stable_sort(found->units.begin(), found->units.end(), [](const AttentionUnit& a, const AttentionUnit& b) {
    const auto cost = [](const AttentionUnit& unit) {
      return unit.num_splits > 1 ? 0 : int64_t(unit.num_tokens) * (unit.end - unit.begin);
    };
    return cost(a) > cost(b);
  });
  units_.push_back(std::move(found));
  return *units_.back();
}

void AttentionPlan::cut(Units& found, int64_t sequence) const {
  const int64_t token_begin = query_start_[sequence], token_end = query_start_[sequence + 1];
  const int64_t length = seq_lens_[sequence], shift = length - token_end;  // token + shift is its position
  const int64_t at_once = std::max<int64_t>(1, kRowsPerUnit / found.group);
  for (int64_t token = token_begin; token < token_end; token += at_once) {
    AttentionUnit unit{};
    unit.blocks = blocks_.data() + first_block_[sequence];
    unit.first_token = int32_t(token);
    unit.num_tokens = int32_t(std::min(at_once, token_end - token));
    unit.first_position = int32_t(token + shift);
    const int64_t rows = unit.num_tokens * found.group, end = unit.first_position + unit.num_tokens;
    const int64_t begin = found.window == 0 ? 0 : std::max<int64_t>(0, unit.first_position - int64_t(found.window) + 1);
    // An even number, as threads often are.
    const int64_t pairs = std::min(divided_up(end - begin, 2 * found.split), kMostSplits / 2);
    const int64_t wanted = rows > kRowsToSplit || end - begin <= kShortestSplit ? 1 : 2 * pairs;
    const int64_t origin = begin / kEvenTo * kEvenTo;
    const int64_t step = divided_up(divided_up(end - origin, wanted), kEvenTo) * kEvenTo;
    const int64_t num_splits = divided_up(end - origin, step);
    unit.num_splits = int32_t(num_splits);
    unit.partial_row = found.num_partial_rows;
    unit.tile = found.num_tiles;
    for (int64_t s = 0; s < num_splits; ++s) {
      unit.split = int32_t(s);
      unit.writes = s == num_splits - 1 && token_end - token_begin == 1;
      unit.begin = int32_t(std::max(begin, origin + s * step));
      unit.end = int32_t(std::min(end, origin + (s + 1) * step));
      found.units.push_back(unit);
      note_blocks(found, unit);
    }
    if (num_splits > 1) {
      found.num_partial_rows += rows * num_splits;
      found.num_tiles += 1;
    }
    found.most_rows = std::max(found.most_rows, rows);
    found.cost += rows * (end - begin);
  }
}

void AttentionPlan::note_blocks(Units& found, const AttentionUnit& unit) const {
  const auto [lowest, highest] =
      std::minmax_element(unit.blocks + unit.begin / block_size_, unit.blocks + (unit.end - 1) / block_size_ + 1);
  found.lowest_block = std::min(found.lowest_block, *lowest);
  found.highest_block = std::max(found.highest_block, *highest);
}

void AttentionPlan::run(AttentionCall call, int64_t num_blocks, const AttentionKernels& kernels, Pool& pool) {
  std::lock_guard<std::mutex> guard(one_call_);
  const Units& work = units_of(call.window, call.num_heads / call.num_kv_heads, call.head_size);
  require(work.lowest_block >= 0 && work.highest_block < num_blocks,
          "attention: block_table names a block that the cache does not have");
  require(highest_slot_ / block_size_ < num_blocks,
          "attention: slot_mapping names a slot that the cache does not have");
  call.slots = slots_.data();
  write(call, kernels, pool);
  attend(call, work, kernels, pool);
}

void AttentionPlan::write(const AttentionCall& call, const AttentionKernels& kernels, Pool& pool) const {
  pool.run(int64_t(written_first_.size()) * call.num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tokens& some = written_first_[size_t(i / call.num_kv_heads)];
      kernels.write(call, i % call.num_kv_heads, some.begin, some.end);
    }
  });
}

void AttentionPlan::attend(const AttentionCall& call, const Units& work, const AttentionKernels& kernels, Pool& pool) {
  const int64_t heads = call.num_kv_heads, count = int64_t(work.units.size()) * heads;
  const int64_t scratch_size = kernels.scratch_size(call.head_size, work.most_rows);
  const int64_t partial_size = kernels.partial_size(call.head_size);
  const size_t partials_needed = size_t(work.num_partial_rows * heads * partial_size);
  if (partials_.size() < partials_needed) partials_.resize(partials_needed);
  if (ready_.size() < size_t(work.num_tiles * heads)) {
    ready_ = std::vector<std::atomic<int32_t>>(size_t(work.num_tiles * heads));
  }
  // `from` to `to` is what this thread does before and after, if no other takes it: what is read next is asked for now.
  const auto attend_to = [&](int64_t begin, int64_t end, int64_t from, int64_t to) {
    float* memory = scratch(scratch_size);
    for (int64_t i = begin; i < end; ++i) {
      const AttentionUnit& unit = work.units[size_t(i / heads)];
      const int64_t head = i % heads, rows = unit.num_tokens * (call.num_heads / heads);
      // Of one tile and head, all splits lie together.
      float* partial = partials_.data() + (unit.partial_row * heads + head * rows * unit.num_splits) * partial_size;
      const int64_t first = i - head, after = first + heads;  // of this unit's heads, of the next's
      const AttentionAround around{first > from ? &unit - 1 : nullptr, after < to ? &unit + 1 : nullptr,
                                   std::max(from - first, int64_t(0)), std::min(to - first, heads),
                                   std::min(to - after, heads)};
      if (unit.writes) kernels.write(call, head, unit.first_token, unit.first_token + 1);
      kernels.attend(call, unit, head, around, memory, partial + unit.split * rows * partial_size);
      if (unit.num_splits == 1) continue;
      // Who finishes last joins the splits, always in the same order.
      auto& ready = ready_[size_t(unit.tile * heads + head)];
      if (ready.fetch_add(1, std::memory_order_acq_rel) + 1 < unit.num_splits) continue;
      ready.store(0, std::memory_order_relaxed);
      kernels.join(call, unit, head, partial);
    }
  };
  if (work.cost * heads < kCostToShare) return attend_to(0, count, 0, count);
  const bool is_small = work.most_rows <= kRowsToSplit;
  const int64_t grain = is_small ? std::clamp<int64_t>(count / (2 * pool.num_threads()), 1, heads) : 1;
  pool.run(count, grain, [&](int64_t begin, int64_t end) {
    const int share = pool.share_of(begin, count, grain);
    attend_to(begin, end, pool.share_begin(share, count, grain), pool.share_begin(share + 1, count, grain));
  });
}

}  // namespace modulm
