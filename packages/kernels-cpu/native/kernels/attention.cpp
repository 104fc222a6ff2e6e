#include "attention.hpp"

#include <math.h>

#include "attention_cache.hpp"
#include "attention_products.hpp"
#include "attention_rows.hpp"
#include "attention_softmax.hpp"
#include "lanes.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kRowsToCopy = 12;  // from so many rows on, 16-bit keys and values are widened once instead of per rows
constexpr int64_t kMostToSweep = 1 << 18;  // bytes: well below a second-level cache

int64_t scratch_size(int64_t head_size, int64_t rows) { return Room(nullptr, head_size, rows).size(nullptr); }

int64_t partial_size(int64_t head_size) { return head_size + 2; }

template <class T>
class Attend {
 public:
  Attend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
         float* scratch)
      : call_(call),
        unit_(unit),
        around_(around),
        group_(call.num_heads / call.num_kv_heads),
        kv_head_(kv_head),
        first_head_(kv_head * group_),
        room_(scratch, call.head_size, unit.num_tokens * group_),
        blocks_(call, kv_head),
        copies_(sizeof(T) != sizeof(float) && room_.rows >= kRowsToCopy),
        copies_keys_(copies_ || call.block_size % kLanes != 0),
        copies_values_(copies_ || call.head_size % kLanes != 0),
        span_(copies_keys_ || copies_values_ || room_.rows > kMaxRows ? kTile : kSpan),
        asks_(asks(&unit)),
        is_swept_(asks_ && asks(around.previous) && fits(unit, around.end - around.begin)) {}

  const Room& run() {
    const int64_t origin = unit_.begin / kTile * kTile;
    if (asks_ && kv_head_ == around_.begin && !asks(around_.previous)) {
      const Ahead first = keys_of(unit_, blocks_, origin);
      for (int64_t line = 0; line < first.lines; ++line) first.ask_line(line);
    }
    begin_sweep();
    prepare();
    for (int64_t start = origin; start < unit_.end; start += span_) {
      const int64_t begin = start > unit_.begin ? start : unit_.begin;
      const int64_t end = start + span_ < unit_.end ? start + span_ : unit_.end;
      find_keys(start, begin, end);
      if (copies_values_) copy_values(blocks_, unit_.blocks, start, begin, end, room_.width, room_.values);
      for (int64_t i = 0; i < num_panels(room_.rows); ++i) {
        asks_now_ = asks_ && i == 0;  // other panels need not ask again
        add_span(panel(room_.rows, i), start, begin, end);
      }
    }
    return room_;
  }

 private:
  // Queries go to [panel][width / kLanes][rows of the panel][kLanes], scaled.
  void prepare() {
    const float scale = call_.scale * (call_.soft_cap != 0.0f ? 1.0f / call_.soft_cap : kLog2e);
    float* const whole = room_.row;
    for (int64_t d = call_.head_size; d < room_.width; ++d) whole[d] = 0.0f;
    for (int64_t i = 0; i < num_panels(room_.rows); ++i) {
      const Panel part = panel(room_.rows, i);
      for (int r = 0; r < part.rows; ++r) {
        const int64_t row = part.begin + r, token = unit_.first_token + row / group_;
        const int64_t head = first_head_ + row % group_;
        const float* from = call_.query + token * call_.query_token_stride + head * call_.query_head_stride;
        rotated(call_, from, token, [=](int64_t d, float x) { whole[d] = x * scale; });
        float* to = room_.queries + part.begin * room_.width + r * kLanes;
        for (int64_t d = 0; d < room_.width; d += kLanes) store(to + d * part.rows, load(whole + d));
      }
    }
    for (int64_t i = 0; i < room_.rows * room_.width; ++i) room_.sums[i] = 0.0f;
    for (int64_t row = 0; row < room_.rows; ++row) {
      room_.largest[row] = -INFINITY;
      room_.totals[row] = 0.0f;
    }
  }

  // What is read a stage after this one, if it is not there yet. Stages of a span are its tiles' keys, then its tiles'
  // values; then come the next span's or unit's.
  Ahead later(int64_t start, int64_t stage) const {
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

  // Nothing is asked for where many rows hide the waiting, nor of float32, where memory is the limit anyway (measured:
  // cold 16-bit caches gain 10 to 25 %, float32 loses as much hot).
  bool asks(const AttentionUnit* unit) const {
    return unit != nullptr && sizeof(T) != sizeof(float) && unit->num_tokens * group_ < kRowsToCopy &&
           call_.block_size % 16 == 0;
  }

  // Whether the unit before asks for all heads of this one.
  bool fits(const AttentionUnit& unit, int64_t heads) const {
    const int64_t size = 2 * heads * call_.head_size * int64_t(sizeof(T));
    return heads > 1 && (unit.end - unit.begin) * size <= kMostToSweep && call_.block_size <= kTile;
  }

  // Of the next unit, this head's share.
  void begin_sweep() {
    if (!asks_ || !asks(around_.next) || !fits(*around_.next, around_.next_end)) return;
    const AttentionUnit& next = *around_.next;
    const Blocks<const T> blocks(call_, 0);
    const int first = next.begin / int(blocks.block_size), last = (next.end - 1) / int(blocks.block_size);
    const int run = int(around_.next_end * blocks.block_size * call_.head_size * int64_t(sizeof(T)) / 64);
    const int lines = 2 * (last - first + 1) * run, heads = int(around_.end - around_.begin);
    const int begin = lines / heads * int(kv_head_ - around_.begin);
    const int end = kv_head_ + 1 == around_.end ? lines : begin + lines / heads;
    sweep_.origin = reinterpret_cast<const char*>(blocks.cache);
    sweep_.block_bytes = blocks.block_stride * int64_t(sizeof(T));
    sweep_.value_bytes = blocks.value_offset * int64_t(sizeof(T));
    sweep_.run_lines = run;
    sweep_.block = next.blocks + first + begin / run / 2;
    sweep_.is_values = begin / run % 2 != 0;
    sweep_.at = sweep_.origin + *sweep_.block * sweep_.block_bytes + (sweep_.is_values ? sweep_.value_bytes : 0) +
                begin % run * 64;
    sweep_.left = run - begin % run;
    sweep_.all = end - begin;
    sweep_.stage_lines = (end - begin) / (2 * ((unit_.end - 1) / kTile - unit_.begin / kTile + 1)) + 1;
  }

  Ahead keys_of(const AttentionUnit& unit, const Blocks<const T>& blocks, int64_t start) const {
    Ahead ahead;
    const int64_t size = blocks.block_size, width = size % 32 == 0 ? 32 : 16;
    ahead.lines = size == 16 ? call_.head_size / 2 : call_.head_size;
    ahead.step = size == 16 ? 64 : size * int64_t(sizeof(T));
    for (int64_t i = first_of(unit, start, width); i < unit.end && i < start + kTile; i += width) {
      ahead.parts[ahead.count++] = reinterpret_cast<const char*>(blocks.key(unit.blocks[i / size], i % size));
    }
    return ahead;
  }

  Ahead values_of(const AttentionUnit& unit, const Blocks<const T>& blocks, int64_t start) const {
    Ahead ahead;
    const int64_t size = blocks.block_size;
    ahead.lines = call_.head_size / 2;
    ahead.step = 64;
    for (int64_t i = first_of(unit, start, 16); i < unit.end && i < start + kTile; i += 16) {
      ahead.parts[ahead.count++] = reinterpret_cast<const char*>(blocks.value(unit.blocks[i / size], i % size));
    }
    return ahead;
  }

  static int64_t first_of(const AttentionUnit& unit, int64_t start, int64_t width) {
    return start > unit.begin ? start : unit.begin / width * width;
  }

  // Set where the span's keys are: in the cache, or a copy. Vectors without a visible position repeat another one.
  void find_keys(int64_t start, int64_t begin, int64_t end) {
    const int first = int(begin - start) / kLanes, last = int(end - 1 - start) / kLanes;
    const int64_t size = call_.block_size, position = start + first * kLanes;
    if (copies_keys_) copy_keys(blocks_, unit_.blocks, start, begin, end, room_.keys);
    const int32_t* block = unit_.blocks + position / size;
    int64_t offset = position % size;
    for (int v = 0; v < int(span_) / kLanes; ++v) {
      if (copies_keys_) {
        copied_keys_[v] = room_.keys + (v < first ? first : v > last ? last : v) * kLanes;
        continue;
      }
      keys_[v] = blocks_.key(*block, offset);
      if (v < first || v >= last) continue;
      offset += kLanes;
      if (offset < size) continue;
      offset = 0;
      ++block;
    }
  }

  // Values from a position on, and the same where they are copied: there lies nothing but the tile.
  Rows<const T> values_from(int64_t position) const {
    const int64_t size = call_.block_size;
    return {blocks_.value(0, 0), unit_.blocks + position / size, blocks_.block_stride, size, call_.head_size,
            position % size};
  }
  Rows<const float> copied_from(int64_t offset) const {
    static constexpr int32_t kBlock = 0;
    return {room_.values, &kBlock, 0, kTile, room_.width, offset};
  }

  int64_t first_seen(int64_t position) const {
    return call_.window == 0 || position < call_.window ? 0 : position - call_.window + 1;
  }

  void add_span(const Panel& part, int64_t start, int64_t begin, int64_t end) {
    switch (part.rows) {
      case 1: return add_span<1>(part.begin, start, begin, end);
      case 2: return add_span<2>(part.begin, start, begin, end);
      case 3: return add_span<3>(part.begin, start, begin, end);
      case 4: return add_span<4>(part.begin, start, begin, end);
      case 5: return add_span<5>(part.begin, start, begin, end);
      default: return add_span<6>(part.begin, start, begin, end);
    }
  }

  template <int kRows>
  void add_span(int64_t row, int64_t start, int64_t begin, int64_t end) {
    const int64_t earliest = unit_.first_position + row / group_;
    const int64_t latest = unit_.first_position + (row + kRows - 1) / group_;
    const int64_t seen = first_seen(earliest);
    const int first = int((seen > begin ? seen : begin) - start), stop = int((latest < end ? latest + 1 : end) - start);
    if (first >= stop) return;
    const int first_vector = first / kLanes, end_vector = (stop + kLanes - 1) / kLanes;
    const int first_tile = first / kTile, end_tile = (stop + kTile - 1) / kTile;
    const float* queries = room_.queries + row * room_.width;
    const int64_t stride = copies_keys_ ? int64_t(kTile) : call_.block_size;
    for (int tile = first_tile; tile < end_tile; ++tile) {
      const int from = tile * kTileVectors, to = from + kTileVectors;
      const int v = from > first_vector ? from : first_vector, v_end = to < end_vector ? to : end_vector;
      const Ahead ahead = asks_now_ ? later(start, tile) : Ahead();
      if (copies_keys_) {
        query_times_keys<kRows>(queries, copied_keys_, stride, call_.head_size, v, v_end, ahead, sweep_, room_.scores);
      } else {
        query_times_keys<kRows>(queries, keys_, stride, call_.head_size, v, v_end, ahead, sweep_, room_.scores);
      }
    }
    Visible visible[kRows];
    float here[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int64_t position = unit_.first_position + (row + r) / group_, from = first_seen(position) - start;
      const int64_t to = position + 1 - start;
      visible[r] = {first_vector, end_vector, from > first ? int(from) : first, to < stop ? int(to) : stop};
      here[r] = largest_score(room_.scores + r * kSpan, visible[r], rule(row + r), float(start - position));
    }
    float* sums = room_.sums + row * room_.width;
    for (int r = 0; r < kRows; ++r) {
      const float factor = scores_to_weights(room_.scores + r * kSpan, visible[r], here[r], room_.largest + row + r,
                                             room_.totals + row + r);
      if (factor != 1.0f) scale(sums + r * room_.width, room_.width, factor);
    }
    const int num_tiles = int(end - start + kTile - 1) / kTile;
    for (int tile = first_tile; tile < end_tile; ++tile) {
      const int from = tile * kTile, to = from + kTile;
      const int t = from > first ? from : first, t_end = to < stop ? to : stop;
      const Ahead ahead = asks_now_ ? later(start, num_tiles + tile) : Ahead();
      if (copies_values_) {
        add_values<kRows>(room_.scores, copied_from(t), t, t_end, ahead, sweep_, sums, room_.width);
      } else {
        add_values<kRows>(room_.scores, values_from(start + t), t, t_end, ahead, sweep_, sums, room_.width);
      }
    }
  }

  static void scale(float* row, int64_t width, float factor) {
    for (int64_t i = 0; i < width; i += kLanes) store(row + i, load(row + i) * all(factor));
  }

  ScoreRule rule(int64_t row) const {
    const float slope = call_.alibi_slopes == nullptr ? 0.0f : call_.alibi_slopes[first_head_ + row % group_];
    return {call_.soft_cap * kLog2e, slope * kLog2e};
  }

  const AttentionCall& call_;
  const AttentionUnit& unit_;
  const AttentionAround& around_;
  const int64_t group_, kv_head_, first_head_;
  const Room room_;
  const Blocks<const T> blocks_;
  const bool copies_, copies_keys_, copies_values_;
  const int64_t span_;  // positions whose softmax is computed at once: more wait less, where they need no copy
  const bool asks_;
  const bool is_swept_;  // the unit before has asked for all of this one
  Sweep sweep_;
  bool asks_now_ = false;
  const T* keys_[kSpanVectors];
  const float* copied_keys_[kTileVectors];
};

float* out_row(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, int64_t row) {
  const int64_t group = call.num_heads / call.num_kv_heads;
  const int64_t token = unit.first_token + row / group, head = kv_head * group + row % group;
  return call.out + (token * call.num_heads + head) * call.head_size;
}

// Sinks take part in the sum of weights, and hold no value.
float with_sink(const AttentionCall& call, int64_t head, float largest, float total, float* factor) {
  *factor = 1.0f;
  if (call.sinks == nullptr) return total;
  const float sink = call.sinks[head] * kLog2e;
  if (sink <= largest) return total + exp2_of(sink - largest);
  *factor = exp2_of(largest - sink);
  return total * *factor + 1.0f;
}

void finish(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const Room& room) {
  const int64_t group = call.num_heads / call.num_kv_heads;
  for (int64_t row = 0; row < room.rows; ++row) {
    float factor;
    const float total = with_sink(call, kv_head * group + row % group, room.largest[row], room.totals[row], &factor);
    float* out = out_row(call, unit, kv_head, row);
    factor /= total;
    for (int64_t d = 0; d < call.head_size; ++d) out[d] = room.sums[row * room.width + d] * factor;
  }
}

void leave(const AttentionCall& call, const Room& room, float* partial) {
  for (int64_t row = 0; row < room.rows; ++row) {
    float* to = partial + row * partial_size(call.head_size);
    for (int64_t d = 0; d < call.head_size; ++d) to[d] = room.sums[row * room.width + d];
    to[call.head_size] = room.largest[row];
    to[call.head_size + 1] = room.totals[row];
  }
}

template <class T>
void attend_in(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
               float* scratch, float* partial) {
  Attend<T> attend(call, unit, kv_head, around, scratch);
  const Room& room = attend.run();
  if (unit.num_splits == 1) {
    finish(call, unit, kv_head, room);
  } else {
    leave(call, room, partial);
  }
}

void attend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
            float* scratch, float* partial) {
  switch (call.cache_type) {
    case CacheType::float32: return attend_in<float>(call, unit, kv_head, around, scratch, partial);
    case CacheType::bfloat16: return attend_in<Brain>(call, unit, kv_head, around, scratch, partial);
    case CacheType::float16: return attend_in<Half>(call, unit, kv_head, around, scratch, partial);
  }
}

void join(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const float* partial) {
  const int64_t group = call.num_heads / call.num_kv_heads, rows = unit.num_tokens * group, size = call.head_size;
  const int64_t step = rows * partial_size(size);
  for (int64_t row = 0; row < rows; ++row) {
    const float* first = partial + row * partial_size(size);
    float largest = -INFINITY, total = 0.0f, factor;
    for (int64_t s = 0; s < unit.num_splits; ++s) {
      const float here = first[s * step + size];
      largest = here > largest ? here : largest;
    }
    float* out = out_row(call, unit, kv_head, row);
    for (int64_t d = 0; d < size; ++d) out[d] = 0.0f;
    for (int64_t s = 0; s < unit.num_splits; ++s) {
      const float *here = first + s * step, share = here[size] == largest ? 1.0f : exp2_of(here[size] - largest);
      total += here[size + 1] * share;
      for (int64_t d = 0; d < size; ++d) out[d] += here[d] * share;
    }
    total = with_sink(call, kv_head * group + row % group, largest, total, &factor);
    factor /= total;
    for (int64_t d = 0; d < size; ++d) out[d] *= factor;
  }
}

void write_all(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end) {
  switch (call.cache_type) {
    case CacheType::float32: return write<float>(call, kv_head, begin, end);
    case CacheType::bfloat16: return write<Brain>(call, kv_head, begin, end);
    case CacheType::float16: return write<Half>(call, kv_head, begin, end);
  }
}

}  // namespace

extern const AttentionKernels attention;
const AttentionKernels attention{scratch_size, partial_size, write_all, attend, join};

}  // namespace modulm::MODULM_ISA
