// What a kernel may know of the pool: that its pieces belong to jobs. `pool.hpp` is not for kernels.
#pragma once

namespace modulm {

// Calls `leave` on this thread when its part of the current job has ended, once for however many pieces asked; false, and
// never calls it, outside of jobs. One function only: the last one that was asked for counts.
bool at_end_of_job(void (*leave)());

}  // namespace modulm
