// Runs one inner product kernel of llama.cpp once: neon_theirs KERNEL ROWS COLUMNS BLOCKS_OF_32.
// For counting its instructions under an emulator, see ../neon_counts.py; the data are zeros.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-cpu/repack.h"

extern "C" {
#include "ggml-cpu/quants.h"
void ggml_vec_dot_f16(int n, float* s, size_t bs, ggml_fp16_t* x, size_t bx, ggml_fp16_t* y,
                      size_t by, int nrc);
void ggml_vec_dot_bf16(int n, float* s, size_t bs, ggml_bf16_t* x, size_t bx, ggml_bf16_t* y,
                       size_t by, int nrc);
float ggml_table_f32_f16[1 << 16];
}

namespace {

using Tiles = void (*)(int n, float* s, size_t bs, const void* vx, const void* vy, int nr, int nc);
using Dot = void (*)(int n, float* s, size_t bs, const void* vx, size_t bx, const void* vy,
                     size_t by, int nrc);

struct Kernel {
  const char* name;
  Tiles tiles;
  Dot dot;
};

#define TILES(name) \
  {#name, ggml_gemv_##name, nullptr}, { #name "+", ggml_gemm_##name, nullptr }
#define DOT(name) {#name, nullptr, ggml_vec_dot_##name}

const Kernel kKernels[] = {
    TILES(q4_0_4x4_q8_0),
    TILES(q4_0_4x8_q8_0),
    TILES(q8_0_4x4_q8_0),
    TILES(q8_0_4x8_q8_0),
    TILES(q4_K_8x4_q8_K),
    TILES(q4_K_8x8_q8_K),
    TILES(q5_K_8x4_q8_K),
    TILES(q5_K_8x8_q8_K),
    TILES(q6_K_8x4_q8_K),
    TILES(q6_K_8x8_q8_K),
    TILES(iq4_nl_4x4_q8_0),
    TILES(mxfp4_4x4_q8_0),
    DOT(q4_0_q8_0),
    DOT(q4_1_q8_1),
    DOT(q5_0_q8_0),
    DOT(q5_1_q8_1),
    DOT(q8_0_q8_0),
    DOT(q2_K_q8_K),
    DOT(q3_K_q8_K),
    DOT(q4_K_q8_K),
    DOT(q5_K_q8_K),
    DOT(q6_K_q8_K),
    DOT(iq4_nl_q8_0),
    DOT(iq4_xs_q8_K),
    DOT(tq1_0_q8_K),
    DOT(tq2_0_q8_K),
    DOT(mxfp4_q8_0),
    DOT(nvfp4_q8_0),
    DOT(iq1_s_q8_K),
    DOT(iq1_m_q8_K),
    DOT(iq2_xxs_q8_K),
    DOT(iq2_xs_q8_K),
    DOT(iq2_s_q8_K),
    DOT(iq3_xxs_q8_K),
    DOT(iq3_s_q8_K),
    {"f16", nullptr, reinterpret_cast<Dot>(ggml_vec_dot_f16)},
    {"bf16", nullptr, reinterpret_cast<Dot>(ggml_vec_dot_bf16)},
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kTwo = true;
#else
constexpr bool kTwo = false;
#endif

// What takes two rows and two columns at a time, with products of int8 matrices.
bool two(const char* name) {
  for (const char* n : {"q4_0_q8_0", "q4_1_q8_1", "q8_0_q8_0", "q4_K_q8_K", "q6_K_q8_K"}) {
    if (strcmp(name, n) == 0) return true;
  }
  return false;
}

// Static, so that clearing them is not counted.
alignas(64) uint8_t x[1 << 22], y[1 << 22];
float out[1 << 16];

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int rows = atoi(argv[2]), columns = atoi(argv[3]), n = atoi(argv[4]);
  for (const Kernel& k : kKernels) {
    if (strcmp(k.name, argv[1]) != 0) continue;
    if (k.tiles) {
      k.tiles(n * 32, out, rows, x, y, columns, rows);
      return 0;
    }
    const int both = kTwo && rows % 2 == 0 && columns % 2 == 0 && two(k.name) ? 2 : 1;
    for (int r = 0; r < rows; r += both) {
      for (int c = 0; c < columns; c += both) {
        k.dot(n * 32, out + c * rows + r, rows, x + r * n * 256, n * 256, y + c * n * 256, n * 256,
              both);
      }
    }
    return 0;
  }
  return 3;
}
