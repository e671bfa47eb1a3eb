// The matrix unit (AMX) and the shapes of its registers.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace gf {

// Whoever lets kernels multiply by the matrix unit holds one of these meanwhile: it gives the tile
// registers back, whose 8 KiB the system would save at every change of threads otherwise.
class MatrixUnit {
 public:
  MatrixUnit() = default;
  ~MatrixUnit() {
    if (shape() != 0) _tile_release();
    shape() = 0;
  }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  // Sixteen columns of bytes times sixteen rows. Registers 0, 1: sums. 2, 3: columns and rows of 32
  // bytes. 4 to 7: of 16, two of each.
  static void bytes() {
    static constexpr Shapes kBytes = {
        1, 0, {}, {64, 64, 32, 64, 16, 64, 16, 64}, {16, 16, 16, 8, 16, 4, 16, 4}};
    set(1, kBytes);
  }

  // Rows of 32 halves times columns. Registers 0, 5: sums. 1, 3: rows. 2, 4: columns, by pairs.
  static void halves(int n_rows, int n_cols) {
    const auto rows = static_cast<uint8_t>(n_rows);
    const auto columns = static_cast<uint16_t>(4 * n_cols);
    const Shapes shapes = {
        1, 0, {}, {columns, 64, columns, 64, columns, columns}, {rows, rows, 16, rows, 16, rows}};
    set(2 + 32 * n_rows + n_cols, shapes);
  }

 private:
  struct alignas(64) Shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };

  static int& shape() {
    static thread_local int now = 0;
    return now;
  }
  static void set(int wanted, const Shapes& shapes) {
    if (shape() == wanted) return;
    shape() = wanted;
    __asm__ volatile("" ::"r"(&shapes) : "memory");  // the intrinsic names eight bytes of it
    _tile_loadconfig(&shapes);
  }
};

}  // namespace gf
