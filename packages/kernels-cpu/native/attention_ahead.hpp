// Asking for memory that a thread will read later: of the same unit a stage ahead, of the next unit as a whole.
//
// Included only by files that are compiled once per instruction set.
#pragma once

#include "attention_cache.hpp"

namespace modulm::MODULM_ISA {
namespace {

// What will be read later, asked for a little at a time: a processor's own guesses end where a block does, and to ask
// for everything at once would only wait. A part is a column of lines.
struct Ahead {
  const char* parts[kTile / 16];
  int count = 0;
  int64_t lines = 0, step = 0;  // of a part, and bytes from one to the next

  // Ask for what is due at a step, where `rate` spreads all over so many of them.
  inline int64_t rate(int64_t steps) const { return count == 0 ? 0 : (lines * kWhole + steps - 1) / steps; }
  inline void ask(int64_t rate, int64_t index) const {
    const int64_t due = (index + 1) * rate / kWhole, end = due < lines ? due : lines;
    for (int64_t line = index * rate / kWhole; line < end; ++line) ask_line(line);
  }
  inline void ask_line(int64_t line) const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(parts[i] + line * step, 0, 2);
  }

 private:
  static constexpr int64_t kWhole = 1 << 12;
};

// All heads of a range of blocks, which will be read after all this: asked for in the order of memory, which delivers
// twice as much then.
struct Sweep {
  const char* origin;                // of the first head's keys in block 0
  const int32_t* block;              // that the current run is in
  int64_t block_bytes, value_bytes;  // to the next block, from keys to values
  int64_t run_lines;                 // of a block's keys or values
  bool is_values;                    // whether the current run is of values
  const char* at;                    // the next line
  int64_t left;                      // of the current run
  int64_t all = 0;                   // lines that have not been asked for
  int64_t stage_lines = 0;           // to ask for while one tile's keys or values are read

  inline void ask(int64_t lines) {
    if (lines > all) lines = all;
    all -= lines;
    while (lines > 0) {
      const int64_t some = lines < left ? lines : left;
      for (const char* end = at + some * 64; at != end; at += 64) __builtin_prefetch(at, 0, 2);
      lines -= some;
      left -= some;
      if (left == 0 && all + lines > 0) start_run();
    }
  }
  inline int64_t rate(int steps) const { return all == 0 ? 0 : int(stage_lines + steps - 1) / steps; }
  void start_run() {
    block += is_values;
    is_values = !is_values;
    at = origin + *block * block_bytes + (is_values ? value_bytes : 0);
    left = run_lines;
  }
};

// What the thread of one head of a unit asks for, and when.
template <class T>
class Foresight {
 public:
  Foresight(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
            int64_t span)
      : call_(call),
        unit_(unit),
        around_(around),
        blocks_(call, kv_head),
        kv_head_(kv_head),
        span_(span),
        asks_(asks(&unit)),
        is_swept_(asks_ && asks(around.previous) && fits(unit, around.end - around.begin)) {}

  // Ask at once for what comes first, if nobody did, and get the sweep ready.
  void begin(Sweep& sweep) const {
    if (asks_ && kv_head_ == around_.begin && !asks(around_.previous)) {
      const Ahead first = keys_of(unit_, blocks_, unit_.begin / kTile * kTile);
      for (int64_t line = 0; line < first.lines; ++line) first.ask_line(line);
    }
    if (asks_ && asks(around_.next) && fits(*around_.next, around_.next_end)) begin_sweep(sweep);
  }

  // What is read a stage after this one, if it is not there yet. Stages of a span are its tiles' keys, then its tiles'
  // values; then come the next span's or unit's.
  Ahead later(int64_t start, int64_t stage) const {
    if (!asks_) return {};
    const int64_t end = start + span_ < unit_.end ? start + span_ : unit_.end;
    const int64_t tiles = (end - start + kTile - 1) / kTile, ahead = stage + 1;
    if (ahead == 2 * tiles && end == unit_.end) {
      const int64_t head = kv_head_ + 1;
      if (head < around_.end) {
        return is_swept_ ? Ahead() : keys_of(unit_, Blocks<const T>(call_, head), unit_.begin / kTile * kTile);
      }
      if (!asks(around_.next) || fits(*around_.next, around_.next_end)) return {};
      return keys_of(*around_.next, Blocks<const T>(call_, 0), around_.next->begin / kTile * kTile);
    }
    if (is_swept_) return {};
    if (ahead < tiles) return keys_of(unit_, blocks_, start + ahead * kTile);
    if (ahead < 2 * tiles) return values_of(unit_, blocks_, start + (ahead - tiles) * kTile);
    return keys_of(unit_, blocks_, end);
  }

 private:
  static constexpr int64_t kMostToSweep = 1 << 17;  // bytes: of more, a head at a time is as fast

  // Nothing is asked for where many rows hide the waiting, nor of float32, where memory is the limit anyway (measured:
  // cold 16-bit caches gain 10 to 25 %, float32 loses as much hot).
  bool asks(const AttentionUnit* unit) const {
    return unit != nullptr && sizeof(T) != sizeof(float) &&
           unit->num_tokens * (call_.num_heads / call_.num_kv_heads) < kManyRows && call_.block_size % 16 == 0;
  }

  // Whether the unit before asks for all heads of this one.
  bool fits(const AttentionUnit& unit, int64_t heads) const {
    const int64_t size = 2 * heads * blocks_.chunk / call_.block_size * int64_t(sizeof(T));
    return heads > 1 && (unit.end - unit.begin) * size <= kMostToSweep && call_.block_size <= kTile;
  }

  // Of the next unit, this head's share.
  void begin_sweep(Sweep& sweep) const {
    const AttentionUnit& next = *around_.next;
    const Blocks<const T> blocks(call_, 0);
    const int first = next.begin / int(blocks.block_size), last = (next.end - 1) / int(blocks.block_size);
    const int run = int(around_.next_end * blocks.chunk * int64_t(sizeof(T)) / 64);
    const int lines = 2 * (last - first + 1) * run, heads = int(around_.end - around_.begin);
    const int begin = lines / heads * int(kv_head_ - around_.begin);
    const int end = kv_head_ + 1 == around_.end ? lines : begin + lines / heads;
    sweep.origin = reinterpret_cast<const char*>(blocks.cache);
    sweep.block_bytes = blocks.block_stride * int64_t(sizeof(T));
    sweep.value_bytes = blocks.value_offset * int64_t(sizeof(T));
    sweep.run_lines = run;
    sweep.block = next.blocks + first + begin / run / 2;
    sweep.is_values = begin / run % 2 != 0;
    sweep.at = sweep.origin + *sweep.block * sweep.block_bytes + (sweep.is_values ? sweep.value_bytes : 0) +
               begin % run * 64;
    sweep.left = run - begin % run;
    sweep.all = end - begin;
    sweep.stage_lines = (end - begin) / (2 * ((unit_.end - 1) / kTile - unit_.begin / kTile + 1)) + 1;
  }

  // A row of keys holds a number (or quad) of each of a block's tokens; scales are one more.
  Ahead keys_of(const AttentionUnit& unit, const Blocks<const T>& blocks, int64_t start) const {
    using Layout = Blocks<const T>;
    Ahead ahead;
    const int64_t size = blocks.block_size, row = size * Layout::kBeside * int64_t(sizeof(T));
    const int64_t width = Layout::kBeside == 1 && size % 32 == 0 ? 32 : 16;
    const int64_t rows = call_.head_size / Layout::kBeside + Layout::kHasScales;
    ahead.lines = row < 64 ? rows * row / 64 : rows;
    ahead.step = row < 64 ? 64 : row;
    for (int64_t i = first_of(unit, start, width); i < unit.end && i < start + kTile; i += width) {
      ahead.parts[ahead.count++] = reinterpret_cast<const char*>(blocks.key(unit.blocks[i / size], i % size));
    }
    return ahead;
  }

  Ahead values_of(const AttentionUnit& unit, const Blocks<const T>& blocks, int64_t start) const {
    Ahead ahead;
    const int64_t size = blocks.block_size;
    ahead.lines = call_.head_size * int64_t(sizeof(T)) / 4 + Blocks<const T>::kHasScales;
    ahead.step = 64;
    for (int64_t i = first_of(unit, start, 16); i < unit.end && i < start + kTile; i += 16) {
      ahead.parts[ahead.count++] = reinterpret_cast<const char*>(blocks.value(unit.blocks[i / size], i % size));
    }
    return ahead;
  }

  static int64_t first_of(const AttentionUnit& unit, int64_t start, int64_t width) {
    return start > unit.begin ? start : unit.begin / width * width;
  }

  const AttentionCall& call_;
  const AttentionUnit& unit_;
  const AttentionAround& around_;
  const Blocks<const T> blocks_;
  const int64_t kv_head_, span_;
  const bool asks_;
  const bool is_swept_;  // the unit before has asked for all of this one
};

}  // namespace
}  // namespace modulm::MODULM_ISA
