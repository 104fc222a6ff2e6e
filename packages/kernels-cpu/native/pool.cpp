#include "pool.hpp"

#include <chrono>

#include "job.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace modulm {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than what lies between two steps of one sequence: to wake a thread takes the waker 40 microseconds of them.
constexpr auto kSpinning = std::chrono::microseconds(300);
constexpr int kSpinsAtOnce = 64;  // until the clock is looked at

thread_local int number_here = -1;  // inside a piece

// One lives while this thread takes pieces of a job; others may within it, for jobs inside of pieces.
class Part {
 public:
  Part() { ++depth; }
  ~Part() {
    if (--depth == 0 && leave != nullptr) leave(), leave = nullptr;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  static thread_local int depth;
  static thread_local void (*leave)();
};

thread_local int Part::depth = 0;
thread_local void (*Part::leave)() = nullptr;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `is_over()` or after a while.
template <class Condition>
inline void spin_until(const Condition& is_over) {
  const auto end = Clock::now() + kSpinning;
  do {
    for (int spin = 0; spin < kSpinsAtOnce; ++spin) {
      if (is_over()) return;
      relax();
    }
  } while (Clock::now() < end);
}

}  // namespace

bool at_end_of_job(void (*leave)()) {
  if (Part::depth == 0) return false;
  Part::leave = leave;
  return true;
}

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads), shares_(size_t(num_threads_)) {
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  stop_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& thread : threads_) thread.join();
}

int Pool::number_of_thread() { return number_here < 0 ? 0 : number_here; }

void Pool::take_pieces(int number) {
  const Part part;
  number_here = number;
  for (int i = 0; i < num_threads_; ++i) {
    Share& share = shares_[size_t((number + i) % num_threads_)];
    for (;;) {
      const int64_t begin = share.next.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= share.end) break;
      call_(self_, begin, begin + grain_ < share.end ? begin + grain_ : share.end);
    }
  }
  number_here = -1;
}

void Pool::execute(int64_t count, int64_t grain, Call call, const void* self) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  if (num_threads_ == 1 || count <= grain || number_here >= 0) {
    const Part part;
    call(self, 0, count);
    return;
  }
  std::lock_guard<std::mutex> guard(one_job_);
  call_ = call;
  self_ = self;
  grain_ = grain;
  for (int i = 0; i < num_threads_; ++i) {
    shares_[size_t(i)].next.store(share_begin(i, count, grain), std::memory_order_relaxed);
    shares_[size_t(i)].end = share_begin(i + 1, count, grain);
  }
  open_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  take_pieces(0);
  open_.store(false);
  // A worker that joined before the door closed may still be at its last piece; who comes later finds it closed.
  while (active_.load() != 0) relax();
}

void Pool::work(int number) {
  uint32_t seen = 0;
  for (;;) {
    spin_until([&] { return epoch_.load(std::memory_order_relaxed) != seen; });
    epoch_.wait(seen);
    if (stop_) return;
    seen = epoch_.load();
    active_.fetch_add(1);
    if (open_.load()) take_pieces(number);
    active_.fetch_sub(1);
  }
}

}  // namespace modulm
