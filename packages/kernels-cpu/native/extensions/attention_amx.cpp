// Attention of many rows over caches of 16- and 8-bit floats, in tiles of bfloat16: 32 rows by 32 positions, then by 32
// numbers of values. Keys and values become tiles once for all rows of a unit. Everything else is AVX-512's.
//
// A row's result depends on its unit, which `attention_plan.hpp` cuts from its sequence alone.
#include "attention.hpp"

#include <math.h>

#include "attention_tiles.hpp"

namespace modulm::MODULM_ISA {
namespace {

constexpr int kBlock = 2 * kTileRows;  // rows at a time
constexpr int kPositions = 256;        // of a span
constexpr int kAhead = 8;              // rows until their queries are read

// Memory of one unit, in `scratch`.
struct TileRoom {
  int64_t width;
  float *scores, *keys, *values, *sums, *queries, *wide_totals, *largest, *totals, *spare;
  int32_t* positions;

  TileRoom(float* scratch, int64_t head_size, int64_t num_rows) : width(rounded_up(head_size, kStep)) {
    const int64_t rows = rounded_up(num_rows, kBlock);
    scores = scratch;  // [2 of rows][vector of positions] tiles of float32; weights take every other one's place
    keys = scores + kBlock * kPositions;
    values = keys + kPositions * width;
    sums = values + kPositions * width;  // [rows / 16][width / 16] tiles of float32
    queries = sums + rows * width;         // [rows / 16][width / 32] tiles
    wide_totals = queries + rows * width;  // [rows][kLanes]
    largest = wide_totals + rows * kLanes;
    totals = largest + rows;
    positions = reinterpret_cast<int32_t*>(totals + rows);
    spare = totals + 2 * rows;  // [width][kLanes]
  }
  int64_t size(const float* scratch) const { return spare + width * kLanes - scratch; }
};

int64_t scratch_size(int64_t head_size, int64_t rows) {
  const int64_t here = TileRoom(nullptr, head_size, rows).size(nullptr);
  const int64_t there = avx512::attention.scratch_size(head_size, rows);
  return here > there ? here : there;
}

// Of a span's positions, those that a row sees.
struct Seen {
  int first, stop;

  // Of 16 positions.
  __mmask16 lanes(int v) const {
    const int from = bounded(first - v * kLanes), to = bounded(stop - v * kLanes);
    return from < to ? __mmask16((1u << to) - (1u << from)) : __mmask16(0);
  }

 private:
  static int bounded(int lane) { return lane < 0 ? 0 : lane < kLanes ? lane : kLanes; }
};

// 32 rows in a span: what they see, in steps of 32 positions, and which of these all of them see.
struct Block {
  int64_t row;
  int count;
  int first, stop, first_step, end_step, first_whole, end_whole;

  bool sees() const { return first < stop; }
};

// 2^x to 1e-4 of it, which is little beside the rounding to bfloat16, for x up to 0, at least 2^-126; exactly 1 at 0,
// not a number where x is none.
inline Vec weight_of(Vec x) {
  x = larger(all(-126.0f), x);
  const Vec f = _mm512_reduce_ps(x, 0);  // what is over the nearest integer
  // Minimax polynomial for -0.5 <= f <= 0.5.
  Vec p = all(0.0550089512f);
  p = fma(p, f, all(0.24221101f));
  p = fma(p, f, all(0.69328293f));
  p = fma(p, f, all(1.0f));
  return _mm512_scalef_ps(p, x - f);
}

template <class T>
class TileAttend {
 public:
  TileAttend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, float* scratch)
      : unit_(unit),
        rows_(call, unit, kv_head),
        room_(scratch, call.head_size, rows_.count),
        columns_(call, unit, kv_head, room_.keys, room_.values, room_.spare),
        steps_(room_.width / kStep),
        is_plain_(call.soft_cap == 0.0f && call.alibi_slopes == nullptr),
        window_(call.window == 0 ? INT32_MAX : call.window - 1) {}

  // Returns whether it could: values that are not finite would show in rows that do not see them.
  bool run(float* partial) {
    const Tiles tiles(whole_tiles());
    prepare();
    for (int64_t start = unit_.begin / kTile * kTile; start < unit_.end; start += kPositions) {
      const int64_t begin = start > unit_.begin ? start : unit_.begin;
      const int64_t end = start + kPositions < unit_.end ? start + kPositions : unit_.end;
      if (!columns_.take(start, begin, end)) return false;
      start_ = start;
      for (int64_t row = 0; row < rows_.count; row += kBlock) add_span(block_of(row, begin, end));
    }
    for (int64_t row = 0; row < rows_.count; ++row) room_.totals[row] = sum_of(load(room_.wide_totals + row * kLanes));
    const auto sums = [&](int64_t row, int64_t d) { return load(sums_of(row) + d / kLanes * kTileFloats); };
    leave(rows_, room_.largest, room_.totals, sums, partial);
    return true;
  }

 private:
  void prepare() {
    float* const whole = room_.spare;
    for (int64_t d = 0; d < room_.width; ++d) whole[d] = 0.0f;
    for (int64_t row = 0; row < rounded_up(rows_.count, kBlock); ++row) {
      if (row < rows_.count) rows_.query(row, whole);  // rows behind the last repeat it
      if (row + kAhead < rows_.count) rows_.ask_query(row + kAhead);
      float* to = room_.queries + row / kTileRows * steps_ * 2 * kTileFloats + row % kTileRows * kLanes;
      for (int64_t step = 0; step < steps_; ++step, to += 2 * kTileFloats) {
        const Vec a = load(whole + step * kStep), b = load(whole + step * kStep + kLanes);
        store_ints(to, upper_halves(a, b));
        store_ints(to + kTileFloats, upper_halves(a - upper_half(a), b - upper_half(b)));
      }
      for (int64_t v = 0; v < 2 * steps_; ++v) store(sums_of(row) + v * kTileFloats, all(0.0f));
      store(room_.wide_totals + row * kLanes, all(0.0f));
      room_.largest[row] = -INFINITY;
      room_.positions[row] = int32_t(rows_.position(row));
    }
  }

  void add_span(const Block& block) {
    if (!block.sees()) return;
    written();
    score(block);
    float now[kBlock];
    for (int r = 0; r < block.count; ++r) now[r] = largest_score(block, r);
    for (int r = 0; r < block.count; ++r) weigh(block, r, now[r]);
    written();
    add(block);
  }

  Block block_of(int64_t row, int64_t begin, int64_t end) const {
    Block block{};
    block.row = row;
    block.count = rows_.count - row < kBlock ? int(rows_.count - row) : kBlock;
    const Seen earliest = seen_by(row, begin, end), latest = seen_by(row + block.count - 1, begin, end);
    block.first = earliest.first;
    block.stop = latest.stop;
    block.first_step = block.first / kStep;
    block.end_step = (block.stop + kStep - 1) / kStep;
    block.first_whole = (latest.first + kStep - 1) / kStep;
    block.end_whole = earliest.stop / kStep;
    if (block.first_whole >= block.end_whole) block.first_whole = block.end_whole = block.end_step;
    return block;
  }

  Seen seen_by(int64_t row, int64_t begin, int64_t end) const {
    const int64_t position = rows_.position(row), from = rows_.first_seen(position);
    return {int((from > begin ? from : begin) - start_), int((position < end ? position + 1 : end) - start_)};
  }

  // Products of queries and keys.
  void score(const Block& block) const {
    const float* queries = room_.queries + block.row / kTileRows * steps_ * 2 * kTileFloats;
    const float* more_queries = queries + steps_ * 2 * kTileFloats;
    for (int v = 2 * block.first_step; v < 2 * block.end_step; v += 2) {
      clear_sums();
      for (int64_t step = 0; step < steps_; ++step) {
        const int64_t at = step * 2 * kTileFloats;
        add_products<true, Columns<T>::kLow>(queries + at, more_queries + at, columns_.key(v, step),
                                             columns_.key(v + 1, step));
      }
      float* const to = room_.scores + v * kTileFloats;
      Sums{to, to + kPositions * kTileRows}.store();
    }
  }

  // Products of weights and values, added to the rows' sums.
  void add(const Block& block) const {
    const float *weights = room_.scores, *more_weights = weights + kPositions * kTileRows;
    for (int64_t v = 0; v < 2 * steps_; v += 2) {
      float* const first = sums_of(block.row) + v * kTileFloats;
      const Sums sums{first, first + 2 * steps_ * kTileFloats};
      sums.load();
      for (int step = block.first_step; step < block.end_step; ++step) {
        const int64_t at = step * 2 * kTileFloats;
        add_products<false, false>(weights + at, more_weights + at, columns_.value(step, v),
                                   columns_.value(step, v + 1));
      }
      sums.store();
    }
  }

  // A row's first 16 sums, and scores.
  float* sums_of(int64_t row) const {
    return room_.sums + row / kTileRows * 2 * steps_ * kTileFloats + row % kTileRows * kLanes;
  }
  float* scores_of(int r) const {
    return room_.scores + r / kTileRows * kPositions * kTileRows + r % kTileRows * kLanes;
  }

  Seen seen_by(const Block& block, int r) const {
    const int64_t position = room_.positions[block.row + r] - start_, from = position - window_;
    return {from > block.first ? int(from) : block.first, position + 1 < block.stop ? int(position + 1) : block.stop};
  }

  // Scores become weights, those of 32 positions where the first 16's scores were. The row's total and sums are brought up
  // to date.
  void weigh(const Block& block, int r, float now) {
    const int64_t row = block.row + r;
    const Vec total = scores_to_weights(block, r, now);
    float *totals = room_.wide_totals + row * kLanes, before = room_.largest[row];
    if (now == before) {
      store(totals, load(totals) + total);
      return;
    }
    const Vec factor = exp2_of(all(before - now));
    store(totals, fma(load(totals), factor, total));
    float* sums = sums_of(row);
    for (int64_t v = 0; v < 2 * steps_; ++v) store(sums + v * kTileFloats, load(sums + v * kTileFloats) * factor);
    room_.largest[row] = now;
  }

  // each(step, low lanes, high lanes) for all steps of a block, and whether the row sees them whole.
  template <class Whole, class Part>
  static void over_steps(const Block& block, const Seen& sees, const Whole& whole, const Part& part) {
    for (int step = block.first_step; step < block.first_whole; ++step) {
      part(step, sees.lanes(2 * step), sees.lanes(2 * step + 1));
    }
    for (int step = block.first_whole; step < block.end_whole; ++step) whole(step);
    for (int step = block.end_whole; step < block.end_step; ++step) {
      part(step, sees.lanes(2 * step), sees.lanes(2 * step + 1));
    }
  }

  // The rule is applied in place. Earlier spans' largest score is included.
  float largest_score(const Block& block, int r) {
    float* const scores = scores_of(r);
    const int64_t row = block.row + r;
    if (!is_plain_) {
      const ScoreRule rule = rows_.rule(row);
      const float distance = float(start_ - room_.positions[row]);
      for (int v = 2 * block.first_step; v < 2 * block.end_step; ++v) {
        float* at = scores + v * kTileFloats;
        store(at, ruled(load(at), rule, distance + float(v * kLanes)));
      }
    }
    Vec most[2] = {all(room_.largest[row]), most[0]};
    const auto whole = [&](int step) {
      const float* at = scores + step * 2 * kTileFloats;
      most[0] = larger(load(at), most[0]);
      most[1] = larger(load(at + kTileFloats), most[1]);
    };
    over_steps(block, seen_by(block, r), whole, [&](int step, __mmask16 low, __mmask16 high) {
      const float* at = scores + step * 2 * kTileFloats;
      most[0] = _mm512_mask_max_ps(most[0], low, load(at), most[0]);
      most[1] = _mm512_mask_max_ps(most[1], high, load(at + kTileFloats), most[1]);
    });
    return largest_of(larger(most[0], most[1]));
  }

  // Returns the sum of weights.
  Vec scores_to_weights(const Block& block, int r, float largest) const {
    float* const scores = scores_of(r);
    // With no finite score yet, any finite number will do.
    const Vec base = all(largest == -INFINITY ? 0.0f : largest);
    Vec total[2] = {all(0.0f), all(0.0f)};
    const auto put = [&](float* at, Vec a, Vec b) {
      store_ints(at, rounded(a, b));
      total[0] = total[0] + a;
      total[1] = total[1] + b;
    };
    const auto whole = [&](int step) {
      float* at = scores + step * 2 * kTileFloats;
      put(at, weight_of(load(at) - base), weight_of(load(at + kTileFloats) - base));
    };
    over_steps(block, seen_by(block, r), whole, [&](int step, __mmask16 low, __mmask16 high) {
      float* at = scores + step * 2 * kTileFloats;
      const Vec a = weight_of(load(at) - base), b = weight_of(load(at + kTileFloats) - base);
      put(at, _mm512_maskz_mov_ps(low, a), _mm512_maskz_mov_ps(high, b));
    });
    return total[0] + total[1];
  }

  const AttentionUnit& unit_;
  const UnitRows rows_;
  const TileRoom room_;
  Columns<T> columns_;
  const int64_t steps_;
  const bool is_plain_;
  const int64_t window_;  // positions before its own that a row sees
  int64_t start_ = 0;     // of the span
};

template <class T>
bool in_tiles(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, float* scratch, float* partial) {
  return TileAttend<T>(call, unit, kv_head, scratch).run(partial);
}

bool in_tiles_if_many(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, float* scratch,
                      float* partial) {
  if (call.exact || unit.num_tokens * (call.num_heads / call.num_kv_heads) < kManyRows) return false;
  switch (call.cache_type) {
    case CacheType::bfloat16: return in_tiles<Brain>(call, unit, kv_head, scratch, partial);
    case CacheType::float16: return in_tiles<Half>(call, unit, kv_head, scratch, partial);
    case CacheType::e4m3: return in_tiles<E4M3>(call, unit, kv_head, scratch, partial);
    case CacheType::e5m2: return in_tiles<E5M2>(call, unit, kv_head, scratch, partial);
    default: return false;
  }
}

void attend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
            float* scratch, float* partial) {
  if (in_tiles_if_many(call, unit, kv_head, scratch, partial)) return;
  avx512::attention.attend(call, unit, kv_head, around, scratch, partial);
}

int64_t size_of_partial(int64_t head_size) { return avx512::attention.partial_size(head_size); }

void write_all(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end) {
  avx512::attention.write(call, kv_head, begin, end);
}

void join(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const float* partial) {
  avx512::attention.join(call, unit, kv_head, partial);
}

}  // namespace

extern const AttentionKernels attention;
const AttentionKernels attention{scratch_size, size_of_partial, write_all, attend, join};

}  // namespace modulm::MODULM_ISA
