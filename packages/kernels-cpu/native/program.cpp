#include "program.hpp"

#include <algorithm>

#include "linear_dense_arguments.hpp"

namespace modulm {
namespace {

constexpr int64_t kBlockRows = 256;        // about so many: weights are read, and widened, once for each block
constexpr int64_t kFewestRows = 160;       // of a block
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

void Stretch::run(Frame& frame) const {
  const auto run_all = [&](Frame& rows) {
    for (const auto& operation : operations_) operation->run(rows);
  };
  const int64_t blocks = frame.num_blocks();
  if (blocks > 1) return frame.over_blocks(blocks, run_all);
  frame.make_local_room();
  run_all(frame);
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
