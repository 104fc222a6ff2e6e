// Memory of packed weights and of a call's activations, and how a product is cut into pieces for the pool.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
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
  explicit Bytes(int64_t size) : data_(allocate(size)), size_(size) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  Bytes(Bytes&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Bytes& operator=(Bytes&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  // Beside what was asked for before: matrices smaller than a large page lie in one together, in the order in which they
  // are packed and read. The memory goes back when the last of its neighbours does.
  static Bytes beside_others(int64_t size) {
    static std::mutex one_caller;
    static std::shared_ptr<uint8_t> slab;
    static int64_t left = 0;
    const int64_t whole = (size + 63) / 64 * 64;
    const std::lock_guard<std::mutex> guard(one_caller);
    if (whole > kSlab / 4) return Bytes(size);
    if (whole > left) slab = allocate(left = kSlab);
    Bytes some;
    some.data_ = std::shared_ptr<uint8_t>(slab, slab.get() + kSlab - left);
    some.size_ = size;
    left -= whole;
    return some;
  }

  uint8_t* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  static constexpr int64_t kPage = int64_t(2) << 20, kSlab = 8 * kPage;

  static std::shared_ptr<uint8_t> allocate(int64_t size) {
    const int64_t alignment = size >= kPage ? kPage : 64, whole = (size + alignment - 1) / alignment * alignment;
    uint8_t* data = static_cast<uint8_t*>(std::aligned_alloc(size_t(alignment), size_t(whole)));
    if (data == nullptr && size > 0) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == kPage) madvise(data, size_t(size / kPage * kPage), MADV_HUGEPAGE);
#endif
    return {data, std::free};
  }

  std::shared_ptr<uint8_t> data_;
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
