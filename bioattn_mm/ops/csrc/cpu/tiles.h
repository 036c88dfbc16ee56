// Products of bfloat16 in the tile registers of AMX: eight, each of 16 rows of 16 bf16x2 or float32.
#pragma once

#include "vectors.h"

namespace bioattn_mm::BIOATTN_ISA {

constexpr int64_t kTile = 16;

// While one exists, all tile registers of its thread have their full size.
struct alignas(64) TileConfiguration {
  TileConfiguration() { _tile_loadconfig(this); }
  ~TileConfiguration() { _tile_release(); }

  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// products = a . b, or where it adds products += a . b: `a` (rows, pairs) and `b` (pairs, columns) are bf16x2, paired
// along the sum, products float32 with the row stride of `b`. Rows are in 2 * kTile, pairs and columns in kTile.
BIOATTN_KERNEL void multiply_tiles(
    float* products, const BFloat16x2* a, int64_t a_stride, const BFloat16x2* b, int64_t b_stride, int64_t rows,
    int64_t columns, int64_t pairs, bool adds) {
  const int64_t bytes = b_stride * sizeof(float), a_bytes = a_stride * sizeof(BFloat16x2);
  asm volatile("" ::: "memory");  // compilers do not know what the instructions of tiles read and write
  for (int64_t row = 0; row < rows; row += 2 * kTile)
    for (int64_t column = 0; column < columns; column += kTile) {
      float *upper = products + row * b_stride + column, *lower = upper + kTile * b_stride;
      if (adds) {
        _tile_loadd(0, upper, bytes);
        _tile_loadd(1, lower, bytes);
      } else {
        _tile_zero(0);
        _tile_zero(1);
      }
      for (int64_t pair = 0; pair < pairs; pair += kTile) {
        _tile_loadd(2, a + row * a_stride + pair, a_bytes);
        _tile_loadd(3, a + (row + kTile) * a_stride + pair, a_bytes);
        _tile_loadd(4, b + pair * b_stride + column, bytes);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, upper, bytes);
      _tile_stored(1, lower, bytes);
    }
  asm volatile("" ::: "memory");
}

}  // namespace bioattn_mm::BIOATTN_ISA
