// Memory of packed weights and of a call's activations, and how a product is cut into pieces for the pool.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "pool.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace modulm {

// Bytes aligned to a cache line, in large pages where the system offers them: decoding reads every byte of every weight
// in each step, and small pages make it look up an address every 4 KiB.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(int64_t size) : size_(size) {
    const size_t page = size_t(2) << 20, alignment = size_t(size) >= page ? page : 64;
    const size_t whole = (size_t(size) + alignment - 1) / alignment * alignment;
    data_ = static_cast<uint8_t*>(std::aligned_alloc(alignment, whole));
    if (data_ == nullptr && size > 0) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == page) madvise(data_, size_t(size) / page * page, MADV_HUGEPAGE);
#endif
  }
  ~Bytes() { std::free(data_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  Bytes(Bytes&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr, other.size_ = 0; }
  Bytes& operator=(Bytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

// Room for one call's activations, kept by each calling thread from call to call: fresh memory costs more than packing.
inline uint8_t* scratch(int64_t size) {
  thread_local Bytes room;
  if (room.size() < size) {
    room = Bytes();
    room = Bytes(size);
  }
  return room.data();
}

// Call `body(panel, first, last)` on the pool for each panel of rows and group of tokens [first, last). A group has at
// most `most` tokens; it is made smaller, in whole tiles, where there would not be a few pieces for each thread.
template <class Body>
void share_out(Pool& pool, int64_t panels, int64_t tokens, int64_t most, int64_t tile, const Body& body) {
  const int64_t wanted = int64_t(pool.num_threads()) * 4;
  int64_t group = most;
  while (group > tile && panels * ((tokens + group - 1) / group) < wanted) group = (group / 2 + tile - 1) / tile * tile;
  const int64_t pieces = panels * ((tokens + group - 1) / group), grain = pieces / (wanted * 4);
  pool.run(pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece / panels * group, last = first + group;
      body(piece % panels, first, last < tokens ? last : tokens);
    }
  });
}

}  // namespace modulm
