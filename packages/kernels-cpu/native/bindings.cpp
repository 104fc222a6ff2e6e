// The Python module: checks every argument, then calls kernels. Nothing else in this package trusts its callers.
#include "bindings.hpp"

#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "features.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace nb = nanobind;

namespace modulm {
namespace {

std::mutex pool_mutex;
std::unique_ptr<Pool> the_pool;

int cores_allowed() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return int(std::thread::hardware_concurrency());
}

void set_num_threads(int count) {
  if (count < 1 || count > 1024) throw std::invalid_argument("set_num_threads: count must be between 1 and 1024");
  std::lock_guard<std::mutex> guard(pool_mutex);
  if (!the_pool || the_pool->num_threads() != count) the_pool = std::make_unique<Pool>(count);
}

}  // namespace

Pool& pool() {
  std::lock_guard<std::mutex> guard(pool_mutex);
  if (!the_pool) the_pool = std::make_unique<Pool>(cores_allowed());
  return *the_pool;
}

}  // namespace modulm

NB_MODULE(_native, m) {
  using namespace modulm;
  m.def("isa", [] { return std::string(name_of(isa())); }, "Name of the instruction set in use.");
  m.def("can_run", [](const std::string& name) {
    for (Isa one : kIsas) {
      if (name == name_of(one)) return can_run(one);
    }
    return false;
  });
  m.def("set_num_threads", &set_num_threads, "Make the pool anew; no kernel may be running.");
  m.def("num_threads", [] { return pool().num_threads(); });
  bind_packed_weight(m);  // the others derive from it
  bind_attention(m);
  bind_elementwise(m);
  bind_linear_dense(m);
  bind_linear_int8(m);
  bind_linear_q4(m);
  bind_program(m);
  bind_reordered(m);
  bind_sampling(m);
}
