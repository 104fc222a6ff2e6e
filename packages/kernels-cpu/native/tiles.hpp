// The tiles of AMX: 8 registers of 16 rows of 64 bytes. One instruction multiplies a tile of 16 tokens by one of 16
// weights' rows. Included by kernels of the namespace `amx` only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace modulm::MODULM_ISA {
namespace {

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

// While one lives this thread's tiles have its shapes. Other code of the thread may use tiles before and after.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

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
