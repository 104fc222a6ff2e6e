// Memory of packed weights and of a call's activations, and how a product is cut into pieces for the pool.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "linear_dense.hpp"
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
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
    // From the system itself, and back to it: among small pieces, what grows or is aligned to large pages leaves holes.
    if (size >= kPage / 4) {
      const size_t whole = size_t(size >= kPage ? size + kPage : size);
      void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      uint8_t* data = static_cast<uint8_t*>(memory);
      if (size >= kPage) {
        data += (kPage - reinterpret_cast<uintptr_t>(memory) % kPage) % kPage;
        madvise(data, size_t(size / kPage * kPage), MADV_HUGEPAGE);
      }
      return {data, [memory, whole](uint8_t*) { munmap(memory, whole); }};
    }
#endif
    uint8_t* data = static_cast<uint8_t*>(std::aligned_alloc(64, size_t((size + 63) / 64 * 64)));
    if (data == nullptr && size > 0) throw std::bad_alloc();
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

// What a job's caller has prepared for all threads, in one piece of memory, which lies in its caches: others ask for all of
// it at once, as line by line each takes a while. More than the L1 cache holds is left to them.
struct Prepared {
  const uint8_t* data;
  int64_t bytes;

  static Prepared of(const Activations& x) {
    return {reinterpret_cast<const uint8_t*>(x.packed), 4 * x.words() * x.tokens};
  }

  void ask_for() const {
    for (int64_t at = 0; at < bytes && bytes <= (16 << 10); at += 64) __builtin_prefetch(data + at, 0, 3);
  }
};

// Call `body(begin, end, first, last)` on the pool for panels [begin, end) of rows and a group of tokens [first, last). A
// group has at most `most` tokens; it is made smaller, in whole tiles, where there would not be a few pieces for each thread.
template <class Body>
void share_out(Pool& pool, int64_t panels, int64_t tokens, int64_t most, int64_t tile, const Prepared& prepared,
               const Body& body) {
  const int64_t wanted = int64_t(pool.num_threads()) * 4;
  int64_t groups = (tokens + most - 1) / most;
  while (groups * tile < tokens && panels * groups < wanted) groups *= 2;
  const int64_t group = ((tokens + groups - 1) / groups + tile - 1) / tile * tile;
  groups = (tokens + group - 1) / group;
  const int64_t pieces = panels * groups, grain = pieces < wanted * 8 ? 1 : pieces / (wanted * 4);
  pool.run(pieces, grain, [&](int64_t begin, int64_t end) {
    if (pool.begins_share(begin, pieces, grain)) prepared.ask_for();
    while (begin < end) {
      const int64_t panel = begin % panels, count = panels - panel < end - begin ? panels - panel : end - begin;
      const int64_t first = begin / panels * group, last = first + group;
      body(panel, panel + count, first, last < tokens ? last : tokens);
      begin += count;
    }
  });
}

// Room for so many tokens, packed. Kernels may read, and pass over, what would belong to those that the last tile lacks.
inline int64_t packed_tokens(const TokenPacker& packer, int64_t tokens) {
  return (tokens + packer.tile - 1) / packer.tile * packer.tile;
}

// The thread's room for `tokens` packed activations.
inline Activations room_for(const TokenPacker& packer, int64_t tokens, int64_t inputs) {
  const int64_t room = packed_tokens(packer, tokens);
  return Activations::in(scratch(Activations::bytes_for(room, inputs)), room, inputs, packer.inputs_per_word);
}

// Activations [tokens, inputs] of `type`, rows `stride` numbers apart, packed there.
inline Activations packed_by(const TokenPacker& packer, const void* x, Float type, int64_t stride, int64_t tokens,
                             int64_t inputs, Pool& pool) {
  const Activations packed = room_for(packer, tokens, inputs);
  pool.run(tokens, 1 + (1 << 14) / inputs, [&](int64_t begin, int64_t end) {
    packer.pack(x, type, stride, begin, end, packed);
  });
  return packed;
}

// Call `body(begin, end, first, last)` as `share_out` does, for `tokens` activations that are packed.
template <class Body>
void over_panels(const TokenPacker& packer, const Activations& packed, int64_t tokens, int64_t panels, Pool& pool,
                 const Body& body) {
  constexpr int64_t kNearBytes = 1 << 20;  // of a group's activations, read again for each panel: they stay in the L2 cache
  const int64_t near = kNearBytes / (4 * packed.words()) / packer.tile * packer.tile;
  const int64_t most = near < packer.tile ? packer.tile : near < packer.most_tokens ? near : packer.most_tokens;
  share_out(pool, panels, tokens, most, packer.tile, Prepared::of(packed), body);
}

// out = x @ W.T by kernels of panels.
template <class Weight>
void multiply_panels(const PanelKernels<Weight>& kernels, const Weight& weight, const void* x, Float type, int64_t stride,
                     int64_t tokens, int64_t inputs, const Output& out, Pool& pool) {
  const Activations packed = packed_by(kernels.tokens, x, type, stride, tokens, inputs, pool);
  over_panels(kernels.tokens, packed, tokens, panels_of(out.rows), pool,
              [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
                kernels.multiply(weight, packed, out, begin, end, first, last);
              });
}

}  // namespace modulm
