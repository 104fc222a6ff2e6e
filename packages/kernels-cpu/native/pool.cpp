#include "pool.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace modulm {
namespace {

constexpr int kSpins = 2000;  // some 20 to 50 microseconds: the gap between two kernels of a step

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this] { work(); });
}

Pool::~Pool() {
  stop_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Pool::take_pieces() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    const int64_t end = begin + grain_ < count_ ? begin + grain_ : count_;
    call_(self_, begin, end);
  }
}

void Pool::execute(int64_t count, int64_t grain, Call call, const void* self) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  if (num_threads_ == 1 || count <= grain) {
    call(self, 0, count);
    return;
  }
  std::lock_guard<std::mutex> guard(one_job_);
  call_ = call;
  self_ = self;
  count_ = count;
  grain_ = grain;
  next_.store(0);
  open_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  take_pieces();
  open_.store(false);
  // A worker that joined before the door closed may still be at its last piece; who comes later finds it closed.
  while (active_.load() != 0) relax();
}

void Pool::work() {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && epoch_.load(std::memory_order_relaxed) == seen; ++spin) relax();
    epoch_.wait(seen);
    if (stop_) return;
    seen = epoch_.load();
    active_.fetch_add(1);
    if (open_.load()) take_pieces();
    active_.fetch_sub(1);
  }
}

}  // namespace modulm
