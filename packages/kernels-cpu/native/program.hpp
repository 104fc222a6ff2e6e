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
  bool operator==(const Place&) const = default;
};

// What a run is given: arrays of one number for each row, and a plan for each KV group. Null where a section has none.
struct StepInputs {
  const int64_t* token_ids = nullptr;
  const int64_t* positions = nullptr;
  const int64_t* lengths = nullptr;
  std::vector<AttentionPlan*> plans;
  float* logits = nullptr;  // where the last operation of the second section writes
};

// What an operation sees of a run. Local buffers hold nothing from one stretch (see below) to the next.
class Frame {
 public:
  int64_t rows = 0;
  StepInputs inputs;
  Pool* pool = nullptr;

  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // `sizes`: numbers per row of each buffer; `local`: which buffers are.
  Frame(std::vector<int64_t> sizes, std::vector<bool> local);

  float* at(const Place& place, int64_t row = 0) const {
    const Buffer& buffer = buffers_[size_t(place.buffer)];
    return buffer.numbers + place.offset + (buffer.first + row) * place.stride;
  }

  // Room for `count` numbers until the operation ends.
  float* scratch(int64_t count) { return at_least(count, *scratch_); }

  void make_room(int64_t rows);  // but in local buffers
  void make_local_room();
  int64_t size_bytes() const;
  bool holds(const Place& place, int64_t size) const;
  bool is_local(const Place& place) const { return local_[size_t(place.buffer)]; }

  // How many blocks of rows the threads should take apart: 1 where there are too few rows.
  int64_t num_blocks() const;

  // body(frame) for the rows of each block, with local buffers of the thread's own.
  template <class Body>
  void over_blocks(int64_t blocks, const Body& body) {
    rooms_.resize(size_t(pool->num_threads()));
    pool->run(blocks, 1, [&](int64_t block, int64_t end) {
      for (; block < end; ++block) {
        Frame part(*this, begin_of(block, blocks), begin_of(block + 1, blocks));
        body(part);
      }
    });
  }

 private:
  struct Buffer {
    float* numbers = nullptr;
    int64_t first = 0;  // the frame's first row is this one of the buffer
  };

  struct Room {
    Bytes buffers, scratch;
  };

  static float* at_least(int64_t count, Bytes& memory);

  Frame(Frame& whole, int64_t first, int64_t last);
  int64_t begin_of(int64_t block, int64_t blocks) const;
  void place_local(const Frame& whole, Room& room);

  std::vector<int64_t> sizes_;
  std::vector<bool> local_;
  std::vector<Buffer> buffers_;
  std::vector<Bytes> memory_;  // of each buffer
  std::vector<Room> rooms_;    // of each thread, for local buffers
  Bytes whole_scratch_, *scratch_ = &whole_scratch_;
  int64_t capacity_ = 0, local_size_ = 0;
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

// One that reads a row of what is there and writes a row, with little work for each number.
class RowOperation : public Operation {
 public:
  virtual void run_rows(const Frame& frame, int64_t begin, int64_t end) const = 0;
  virtual int64_t row_work() const = 0;  // numbers

  void run(Frame& frame) const override {
    over_rows(frame, frame.rows, row_work(), [&](int64_t begin, int64_t end) { run_rows(frame, begin, end); });
  }
};

// Rows as a product wants them, and who packs them; null where it takes so many as they are.
struct Packing {
  const TokenPacker* by = nullptr;
  const float* x = nullptr;
  int64_t stride = 0;
  Activations to{};

  int64_t work() const { return 2 * to.inputs; }  // of a row, in numbers
  void run(int64_t begin, int64_t end) const { by->pack(x, Float::f32, stride, begin, end, to); }
};

// One that may begin with packing, and end with what the next operation would do: `run_packed` returns whether it did.
class Product : public Operation {
 public:
  virtual Packing packing(Frame& frame) const = 0;
  virtual bool run_packed(Frame& frame, const Packing& packed) const = 0;
  virtual void run_unpacked(Frame& frame) const = 0;

  void run(Frame& frame) const final;
};

// Operations that leave rows apart. Where there are many rows, a thread takes a block of them from the first operation to
// the last, so that what is between stays in its cache; only this part of it then ever exists. Operations by rows, and the
// packing they end with, are one job of the pool, a few rows at a time.
class Stretch : public Operation {
 public:
  void add(std::unique_ptr<Operation> operation);
  void run(Frame& frame) const override;

 private:
  struct Step {
    std::unique_ptr<Operation> operation;
    const RowOperation* by_rows;
    const Product* product;
  };

  void run_all(Frame& frame) const;
  size_t run_rows(Frame& frame, size_t first) const;

  std::vector<Step> steps_;
};

class Section {
 public:
  // See `Frame`.
  Section(std::vector<int64_t> sizes, std::vector<bool> local) : frame_(std::move(sizes), std::move(local)) {}

  void add(std::unique_ptr<Operation> operation) { operations_.push_back(std::move(operation)); }
  const Frame& frame() const { return frame_; }

  // Make room for so many rows; what was in the buffers before is lost if they grow.
  Frame& prepare(int64_t rows);
  void run(const StepInputs& inputs, Pool& pool);

 private:
  Frame frame_;
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace modulm
