#include "attention.hpp"

#include <math.h>

#include "attention_ahead.hpp"
#include "attention_bytes.hpp"
#include "attention_rows.hpp"
#include "attention_words.hpp"

namespace modulm::MODULM_ISA {
namespace {

int64_t scratch_size(int64_t head_size, int64_t rows) { return Room(nullptr, head_size, rows).size(nullptr); }

template <class Products>
class Attend {
 public:
  Attend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
         float* scratch)
      : unit_(unit),
        rows_(call, unit, kv_head),
        room_(scratch, call.head_size, rows_.count),
        products_(call, unit, kv_head, room_),
        span_(products_.span()),
        foresight_(call, unit, kv_head, around, span_) {}

  void run(float* partial) {
    foresight_.begin(sweep_);
    prepare();
    for (int64_t start = unit_.begin / kTile * kTile; start < unit_.end; start += span_) {
      const int64_t begin = start > unit_.begin ? start : unit_.begin;
      const int64_t end = start + span_ < unit_.end ? start + span_ : unit_.end;
      products_.find(start, begin, end);
      for (int64_t i = 0; i < num_panels(room_.rows); ++i) {
        asks_now_ = i == 0;  // other panels need not ask again
        add_span(panel(room_.rows, i), start, begin, end);
      }
    }
    const auto sums = [&](int64_t row, int64_t d) { return load(room_.sums + row * room_.width + d); };
    leave(rows_, room_.largest, room_.totals, sums, partial);
  }

 private:
  // Queries are rotated and scaled, sums begin at zero.
  void prepare() {
    float* const whole = room_.row;
    for (int64_t d = rows_.call.head_size; d < room_.width; ++d) whole[d] = 0.0f;
    for (int64_t i = 0; i < num_panels(room_.rows); ++i) {
      const Panel part = panel(room_.rows, i);
      for (int r = 0; r < part.rows; ++r) {
        rows_.query(part.begin + r, whole);
        products_.set_query(part, r, whole);
      }
    }
    for (int64_t i = 0; i < room_.rows * room_.width; ++i) room_.sums[i] = 0.0f;
    for (int64_t row = 0; row < room_.rows; ++row) {
      room_.largest[row] = -INFINITY;
      room_.totals[row] = 0.0f;
    }
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
    const int64_t earliest = rows_.position(row), latest = rows_.position(row + kRows - 1);
    const int64_t seen = rows_.first_seen(earliest);
    const int first = int((seen > begin ? seen : begin) - start), stop = int((latest < end ? latest + 1 : end) - start);
    if (first >= stop) return;
    const int first_vector = first / kLanes, end_vector = (stop + kLanes - 1) / kLanes;
    const int first_tile = first / kTile, end_tile = (stop + kTile - 1) / kTile;
    for (int tile = first_tile; tile < end_tile; ++tile) {
      const int from = tile * kTileVectors, to = from + kTileVectors;
      const int v = from > first_vector ? from : first_vector, v_end = to < end_vector ? to : end_vector;
      products_.template score<kRows>(row, v, v_end, asks_now_ ? foresight_.later(start, tile) : Ahead(), sweep_);
    }
    Visible visible[kRows];
    float here[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int64_t position = rows_.position(row + r), from = rows_.first_seen(position) - start;
      const int64_t to = position + 1 - start;
      visible[r] = {first_vector, end_vector, from > first ? int(from) : first, to < stop ? int(to) : stop};
      here[r] = largest_score(room_.scores + r * kSpan, visible[r], rows_.rule(row + r), float(start - position));
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
      const Ahead ahead = asks_now_ ? foresight_.later(start, num_tiles + tile) : Ahead();
      products_.template add<kRows>(row, start, t, t_end, ahead, sweep_);
    }
  }

  static void scale(float* row, int64_t width, float factor) {
    for (int64_t i = 0; i < width; i += kLanes) store(row + i, load(row + i) * all(factor));
  }

  const AttentionUnit& unit_;
  const UnitRows rows_;
  const Room room_;
  Products products_;
  const int64_t span_;
  const Foresight<typename Products::Number> foresight_;
  Sweep sweep_;
  bool asks_now_ = false;
};

template <class Products>
void attend_in(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
               float* scratch, float* partial) {
  Attend<Products>(call, unit, kv_head, around, scratch).run(partial);
}

template <class T>
void attend_in_few_bits(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head,
                       const AttentionAround& around, float* scratch, float* partial) {
  const bool has_many = unit.num_tokens * (call.num_heads / call.num_kv_heads) >= kManyRows;
  if (kWordsPay && has_many && !call.exact) {
    return attend_in<WordProducts<T>>(call, unit, kv_head, around, scratch, partial);
  }
  attend_in<FloatProducts<T>>(call, unit, kv_head, around, scratch, partial);
}

void attend(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const AttentionAround& around,
            float* scratch, float* partial) {
  switch (call.cache_type) {
    case CacheType::float32: return attend_in<FloatProducts<float>>(call, unit, kv_head, around, scratch, partial);
    case CacheType::bfloat16: return attend_in_few_bits<Brain>(call, unit, kv_head, around, scratch, partial);
    case CacheType::float16: return attend_in_few_bits<Half>(call, unit, kv_head, around, scratch, partial);
    case CacheType::int8: return attend_in<ByteProducts>(call, unit, kv_head, around, scratch, partial);
    case CacheType::e4m3: return attend_in_few_bits<E4M3>(call, unit, kv_head, around, scratch, partial);
    case CacheType::e5m2: return attend_in_few_bits<E5M2>(call, unit, kv_head, around, scratch, partial);
  }
}

void join(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, const float* partial) {
  const UnitRows rows(call, unit, kv_head);
  const int64_t size = call.head_size, step = rows.count * partial_size(size);
  for (int64_t row = 0; row < rows.count; ++row) {
    const float* first = partial + row * partial_size(size);
    float largest = -INFINITY, total = 0.0f, factor;
    for (int64_t s = 0; s < unit.num_splits; ++s) {
      const float here = first[s * step + size];
      largest = here > largest ? here : largest;
    }
    float* out = rows.out(row);
    for (int64_t d = 0; d < size; ++d) out[d] = 0.0f;
    for (int64_t s = 0; s < unit.num_splits; ++s) {
      const float *here = first + s * step, share = here[size] == largest ? 1.0f : exp2_of(here[size] - largest);
      total += here[size + 1] * share;
      for (int64_t d = 0; d < size; ++d) out[d] += here[d] * share;
    }
    total = with_sink(call, rows.head(row), largest, total, &factor);
    factor = factor * rows.unit_of(call.value_scales) / total;
    for (int64_t d = 0; d < size; ++d) out[d] *= factor;
  }
}

void write_all(const AttentionCall& call, int64_t kv_head, int64_t begin, int64_t end) {
  switch (call.cache_type) {
    case CacheType::float32: return write<float>(call, kv_head, begin, end);
    case CacheType::bfloat16: return write<Brain>(call, kv_head, begin, end);
    case CacheType::float16: return write<Half>(call, kv_head, begin, end);
    case CacheType::int8: return write<int8_t>(call, kv_head, begin, end);
    case CacheType::e4m3: return write<E4M3>(call, kv_head, begin, end);
    case CacheType::e5m2: return write<E5M2>(call, kv_head, begin, end);
  }
}

}  // namespace

extern const AttentionKernels attention;
const AttentionKernels attention{scratch_size, partial_size, write_all, attend, join};

}  // namespace modulm::MODULM_ISA
