// The tiles of AMX: 8 registers of 16 rows of 64 bytes. One instruction multiplies a tile of 16 tokens by one of 16
// weights' rows. Included by kernels of the namespace `amx` only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "job.hpp"

namespace modulm::MODULM_ISA {

// What each tile holds. Sums are 16 x 16 words; inputs are `bytes` a row for 16 tokens, and weights 4 of those bytes for
// 16 rows of the matrix side by side.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int height, int bytes) {
    row_bytes[tile] = uint16_t(bytes);
    rows[tile] = uint8_t(height);
  }
};

// While one lives this thread's tiles have its shapes. To set them takes as long as a tenth of a small panel's product, so
// the pieces of a job leave them to one another. Other code of the thread may use tiles before and after the job.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) {
    const __m512i wanted = _mm512_load_si512(&shapes);
    if (is_kept && _mm512_cmpneq_epi64_mask(wanted, _mm512_load_si512(&kept)) == 0) return;
    _tile_loadconfig(&shapes);
    _mm512_store_si512(&kept, wanted);
    is_kept = at_end_of_job(release);
  }
  ~Tiles() {
    if (!is_kept) _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  static void release() {
    _tile_release();
    is_kept = false;
  }

  static inline thread_local constinit TileShapes kept;
  static inline thread_local constinit bool is_kept = false;  // till the job ends
};

namespace {

// Tiles 0 to 3, where products of 32 rows by 32 columns have their sums.
inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// What was written comes before the tiles that are loaded from it: compilers do not know what a tile load reads.
inline void written() { asm volatile("" ::: "memory"); }

}  // namespace
}  // namespace modulm::MODULM_ISA
