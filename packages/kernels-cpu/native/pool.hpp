// A pool of threads that share one job at a time in small pieces, so that a slow core gets fewer of them: each thread has
// a share of neighbouring pieces, which it takes in order, and when it has done them takes what others have left.
//
// Results never depend on which thread computes a piece. Waiting threads spin briefly, then sleep; the caller waits only
// for pieces that have been begun, never for a thread that has not woken up. A job inside a piece stays on its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace modulm {

class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }

  // Of the thread that calls, below `num_threads`; 0 outside of pieces.
  static int number_of_thread();

  // Where the share of thread `number` begins of `count` items, `grain` at a time; that of number `num_threads` is the end.
  int64_t share_begin(int number, int64_t count, int64_t grain) const {
    const int64_t pieces = (count + grain - 1) / grain, begin = pieces * number / num_threads_ * grain;
    return begin < count ? begin : count;
  }

  // Whose share an item is in.
  int share_of(int64_t item, int64_t count, int64_t grain) const {
    int number = 0;
    while (share_begin(number + 1, count, grain) <= item) ++number;
    return number;
  }

  // Whether a piece is the first of the share of the thread that has taken it, which is not the job's caller.
  bool begins_share(int64_t begin, int64_t count, int64_t grain) const {
    const int number = number_of_thread();
    return number > 0 && begin == share_begin(number, count, grain);
  }

  // Call `body(begin, end)` for disjoint ranges that cover [0, count), `grain` items at a time; returns when all are
  // done. `body` runs on several threads at once and must not throw. One job at a time: concurrent callers queue.
  template <class Body>
  void run(int64_t count, int64_t grain, const Body& body) {
    execute(count, grain, [](const void* self, int64_t begin, int64_t end) {
      (*static_cast<const Body*>(self))(begin, end);
    }, &body);
  }

 private:
  using Call = void (*)(const void* self, int64_t begin, int64_t end);

  void execute(int64_t count, int64_t grain, Call call, const void* self);
  void work(int number);
  void take_pieces(int number);

  const int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex one_job_;

  Call call_ = nullptr;
  const void* self_ = nullptr;
  int64_t grain_ = 1;
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;  // of each thread; the caller has the first
  alignas(64) std::atomic<int> active_{0};      // workers inside the current job
  alignas(64) std::atomic<bool> open_{false};   // whether workers may join
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts jobs; workers sleep on it
  std::atomic<bool> stop_{false};
};

// The process's pool, made on first use with as many threads as `set_num_threads` said, or the cores allowed.
Pool& pool();

}  // namespace modulm
