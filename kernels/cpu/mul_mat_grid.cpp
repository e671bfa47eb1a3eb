// Tiles of products with rows of the grid types.
#include "cpu/mul_mat_grid.h"

#include "cpu/mul_mat_grid_load.h"

namespace gf {
namespace {

template <class B, int T>
void grid_tile(const char* rows, int64_t row_bytes, int n_rows, const uint8_t* acts, int64_t k,
               float* out) {
  const Tables<B> tables;
  for (int r = 0; r < n_rows; ++r, rows += row_bytes) {
    const B* block = reinterpret_cast<const B*>(rows);
    const uint8_t* a = acts;
    GridSum sums[T];
    static_for<T>([&](auto c) GF_LAMBDA_INLINE { sums[c] = GridSum(); });
    for (int64_t i = 0; i < k / B::QK; ++i, ++block) {
      const auto add_32 = [&](auto s) GF_LAMBDA_INLINE {
        const Signed32 w = signed_32(block, s, tables);
        const auto* d = reinterpret_cast<const float*>(a);
        const auto* q = reinterpret_cast<const int8_t*>(a + 12 * T);
        static_for<T>([&](auto c) GF_LAMBDA_INLINE {
          sums[c].template add<kOneScale<B>>(w, q + 32 * c, d[c]);
        });
        a += T * kActBlockBytes;
      };
      if constexpr (T == 1) {  // where each of a block's eight is found, is then known beforehand
        static_for<B::QK / 32>(add_32);
      } else {
        for (int s = 0; s < B::QK / 32; ++s) add_32(s);
      }
    }
    static_for<T>([&](auto c) GF_LAMBDA_INLINE { out[c * kRows + r] = sums[c].total(); });
  }
  for (int c = 0; c < T; ++c) {
    for (int r = n_rows; r < kRows; ++r) out[c * kRows + r] = 0.0f;
  }
}

template <class B, int... i>
constexpr GridType grid_type(std::integer_sequence<int, i...>) {
  return {B::TYPE, {&grid_tile<B, i + 1>..., &grid_tile<B, kMaxTile>}};
}

template <class B>
constexpr GridType grid_type() {
  return grid_type<B>(std::make_integer_sequence<int, kAnyWidth>());
}

}  // namespace

const GridType* find_grid_type(int type) {
  static constexpr GridType kTypes[] = {grid_type<block_iq2_xxs>(), grid_type<block_iq2_xs>(),
                                        grid_type<block_iq2_s>(),   grid_type<block_iq3_xxs>(),
                                        grid_type<block_iq3_s>(),   grid_type<block_iq1_s>(),
                                        grid_type<block_iq1_m>(),   grid_type<block_tq1_0>()};
  for (const GridType& t : kTypes) {
    if (t.type == type) return &t;
  }
  return nullptr;
}

}  // namespace gf
