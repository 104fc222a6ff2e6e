#include "program.hpp"

#include "linear_dense_arguments.hpp"

namespace modulm {

void Frame::make_room(int64_t wanted) {
  rows = wanted;
  if (wanted <= capacity_) return;
  for (const int64_t size : sizes_) require(wanted <= kMostNumbers / size, "A step has more than 2^40 numbers");
  capacity_ = 0;  // until all are there: memory may run out on the way
  for (Bytes& buffer : buffers_) buffer = Bytes();  // all old ones go first, so that new ones find room together
  for (size_t i = 0; i < sizes_.size(); ++i) buffers_[i] = Bytes(wanted * sizes_[i] * 4);
  capacity_ = wanted;
}

int64_t Frame::size_bytes() const {
  int64_t total = scratch_.size();
  for (const Bytes& buffer : buffers_) total += buffer.size();
  return total;
}

bool Frame::holds(const Place& place, int64_t size) const {
  if (place.buffer < 0 || place.buffer >= int64_t(sizes_.size())) return false;
  const int64_t whole = sizes_[size_t(place.buffer)];
  return size > 0 && place.offset >= 0 && place.offset <= whole - size && place.stride >= size && place.stride <= whole;
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
