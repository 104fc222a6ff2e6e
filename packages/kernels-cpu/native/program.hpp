// A forward pass as a list of operations over buffers, run by one call: how a step leaves Python behind.
//
// A value is [rows, ...] of float32: one row for each token of the step, or for each row that needs logits. Rows never
// mix but in attention. `modulm_kernels_cpu/program.py` builds sections from a recorded graph; `program_operations.hpp`
// has the operations. Compiled for the baseline only: operations call kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention_plan.hpp"
#include "linear_dense_memory.hpp"
#include "pool.hpp"

namespace modulm {

// Row r of a value begins at number `offset` + r * `stride` of a buffer and is contiguous.
struct Place {
  int64_t buffer, offset, stride;
};

// What a run is given: arrays of one number for each row, and a plan for each KV group. Null where a section has none.
struct StepInputs {
  const int64_t* token_ids = nullptr;
  const int64_t* positions = nullptr;
  const int64_t* lengths = nullptr;
  std::vector<AttentionPlan*> plans;
  float* logits = nullptr;  // where the last operation of the second section writes
};

// What an operation sees of a run.
class Frame {
 public:
  int64_t rows = 0;
  StepInputs inputs;
  Pool* pool = nullptr;

  explicit Frame(std::vector<int64_t> sizes) : sizes_(std::move(sizes)), buffers_(sizes_.size()) {}

  float* at(const Place& place, int64_t row = 0) const {
    return reinterpret_cast<float*>(buffers_[size_t(place.buffer)].data()) + place.offset + row * place.stride;
  }

  // Room for `count` numbers until the operation ends.
  float* scratch(int64_t count) {
    if (scratch_.size() < count * 4) {
      scratch_ = Bytes();
      scratch_ = Bytes(count * 4);
    }
    return reinterpret_cast<float*>(scratch_.data());
  }

  void make_room(int64_t rows);
  int64_t size_bytes() const;
  bool holds(const Place& place, int64_t size) const;

 private:
  std::vector<int64_t> sizes_;  // numbers per row
  std::vector<Bytes> buffers_;
  Bytes scratch_;
  int64_t capacity_ = 0;
};

constexpr int64_t kNumbersAtOnce = 8 << 10;  // so much work of an element each is less than waking a thread

// body(begin, end) for rows of `size` numbers, on the pool where there are enough.
template <class Body>
void over_rows(const Frame& frame, int64_t rows, int64_t size, const Body& body) {
  const int64_t some = kNumbersAtOnce / size;
  frame.pool->run(rows, some < 1 ? 1 : some, body);
}

class Operation {
 public:
  virtual ~Operation() = default;
  virtual void run(Frame& frame) const = 0;
};

class Section {
 public:
  // `sizes`: numbers per row of each buffer.
  explicit Section(std::vector<int64_t> sizes) : frame_(std::move(sizes)) {}

  void add(std::unique_ptr<Operation> operation) { operations_.push_back(std::move(operation)); }
  int64_t num_operations() const { return int64_t(operations_.size()); }
  const Frame& frame() const { return frame_; }

  // Make room for so many rows; what was in the buffers before is lost if they grow.
  Frame& prepare(int64_t rows);
  void run(const StepInputs& inputs, Pool& pool);

 private:
  Frame frame_;
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace modulm
