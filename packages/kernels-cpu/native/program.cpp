#include "program.hpp"

#include <algorithm>

#include "linear_dense_arguments.hpp"

namespace modulm {
namespace {

constexpr int64_t kBlockRows = 256;        // about so many: weights are read, and widened, once for each block
constexpr int64_t kFewestRows = 160;       // of a block
constexpr int64_t kRowsAtOnce = 8;         // that operations by rows leave to one another in the L1 cache
constexpr int64_t kBlockTile = 32;         // blocks begin at a multiple of it
constexpr int64_t kBlockNumbers = 1 << 20; // of a block's local buffers, few of which are in use at a time

}  // namespace

Frame::Frame(std::vector<int64_t> sizes, std::vector<bool> local)
    : sizes_(std::move(sizes)), local_(std::move(local)), buffers_(sizes_.size()), memory_(sizes_.size()) {
  local_.resize(sizes_.size());
  for (size_t i = 0; i < sizes_.size(); ++i) local_size_ += local_[i] ? sizes_[i] : 0;
}

Frame::Frame(Frame& whole, int64_t first, int64_t last)
    : rows(last - first), inputs(whole.inputs), pool(whole.pool), buffers_(whole.buffers_) {
  Room& room = whole.rooms_[size_t(Pool::number_of_thread())];
  scratch_ = &room.scratch;
  for (Buffer& buffer : buffers_) buffer.first += first;
  place_local(whole, room);
}

void Frame::make_local_room() {
  rooms_.resize(size_t(pool->num_threads()));
  place_local(*this, rooms_.front());
}

void Frame::place_local(const Frame& whole, Room& room) {
  // For most blocks at once: each time they grew they would leave a hole.
  float* free = at_least(std::max(rows, kBlockRows) * whole.local_size_, room.buffers);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!whole.local_[i]) continue;
    buffers_[i] = {free, 0};
    free += rows * whole.sizes_[i];
  }
}

void Frame::make_room(int64_t wanted) {
  rows = wanted;
  if (wanted <= capacity_) return;
  for (const int64_t size : sizes_) require(wanted <= kMostNumbers / size, "A step has more than 2^40 numbers");
  capacity_ = 0;  // until all are there: memory may run out on the way
  for (Bytes& buffer : memory_) buffer = Bytes();  // all old ones go first, so that new ones find room together
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (local_[i]) continue;
    memory_[i] = Bytes(wanted * sizes_[i] * 4);
    buffers_[i].numbers = reinterpret_cast<float*>(memory_[i].data());
  }
  capacity_ = wanted;
}

float* Frame::at_least(int64_t count, Bytes& memory) {
  if (memory.size() < count * 4) {
    memory = Bytes();
    memory = Bytes(count * 4);
  }
  return reinterpret_cast<float*>(memory.data());
}

int64_t Frame::num_blocks() const {
  const int64_t threads = pool->num_threads(), share = rows / threads;
  if (share < kFewestRows) return 1;
  return threads * std::max<int64_t>(1, (share + kBlockRows / 2) / kBlockRows);
}

int64_t Frame::begin_of(int64_t block, int64_t blocks) const {
  return block == blocks ? rows : rows * block / blocks / kBlockTile * kBlockTile;
}

int64_t Frame::size_bytes() const {
  int64_t total = whole_scratch_.size();
  for (const Bytes& buffer : memory_) total += buffer.size();
  for (const Room& room : rooms_) total += room.buffers.size() + room.scratch.size();
  return total;
}

bool Frame::holds(const Place& place, int64_t size) const {
  if (place.buffer < 0 || place.buffer >= int64_t(sizes_.size())) return false;
  const int64_t whole = sizes_[size_t(place.buffer)];
  return size > 0 && place.offset >= 0 && place.offset <= whole - size && place.stride >= size && place.stride <= whole;
}

void Product::run(Frame& frame) const {
  const Packing packed = packing(frame);
  if (packed.by == nullptr) return run_unpacked(frame);
  over_rows(frame, frame.rows, packed.work(), [&](int64_t begin, int64_t end) { packed.run(begin, end); });
  run_packed(frame, packed);
}

void Stretch::add(std::unique_ptr<Operation> operation) {
  const auto* by_rows = dynamic_cast<const RowOperation*>(operation.get());
  const auto* product = dynamic_cast<const Product*>(operation.get());
  steps_.push_back({std::move(operation), by_rows, product});
}

void Stretch::run(Frame& frame) const {
  const int64_t blocks = frame.num_blocks();
  if (blocks > 1) return frame.over_blocks(blocks, [&](Frame& rows) { run_all(rows); });
  frame.make_local_room();
  run_all(frame);
}

void Stretch::run_all(Frame& frame) const {
  for (size_t number = 0; number < steps_.size();) {
    if (steps_[number].by_rows != nullptr || steps_[number].product != nullptr) {
      number = run_rows(frame, number);
    } else {
      steps_[number++].operation->run(frame);
    }
  }
}

// Operations by rows from `first` on, if it is one, and a product that follows. Returns the number of the next operation.
size_t Stretch::run_rows(Frame& frame, size_t first) const {
  size_t end = first;
  int64_t work = 0;
  for (; end < steps_.size() && steps_[end].by_rows != nullptr; ++end) work += steps_[end].by_rows->row_work();
  const Product* product = end < steps_.size() ? steps_[end].product : nullptr;
  const Packing packing = product != nullptr ? product->packing(frame) : Packing{};
  if (packing.by != nullptr) work += packing.work();
  const auto run = [&](int64_t begin, int64_t stop) {
    for (int64_t row = begin; row < stop; row += kRowsAtOnce) {
      const int64_t next = std::min(row + kRowsAtOnce, stop);
      for (size_t number = first; number < end; ++number) steps_[number].by_rows->run_rows(frame, row, next);
      if (packing.by != nullptr) packing.run(row, next);
    }
  };
  if (work > 0) over_rows(frame, frame.rows, work, run);
  if (product == nullptr) return end;
  if (packing.by != nullptr) return end + (product->run_packed(frame, packing) ? 2 : 1);
  product->run_unpacked(frame);
  return end + 1;
}

Frame& Section::prepare(int64_t rows) {
  frame_.make_room(rows);
  return frame_;
}

void Section::run(const StepInputs& inputs, Pool& pool) {
  frame_.inputs = inputs;
  frame_.pool = &pool;
  for (const auto& operation : operations_) operation->run(frame_);
}

}  // namespace modulm
