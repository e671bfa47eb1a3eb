// The row kernels of each type, and the columns they take.
#include "cpu/sparse_types.h"

#include "cpu/mul_mat_vec.h"
#include "cpu/sparse_axpy.h"
#include "cpu/sparse_dot_q4_0.h"

namespace gf {
namespace {

// Rows whose accumulators fit the registers.
constexpr int kDotRows = VL >= 16 ? kRowsAtOnce : kRowsAtOnce / 2;

template <class Dot>
void dot(const char* row, const void* const* x, int n, int64_t k, float* out) {
  if (n == kDotTile) return Dot::template tile<1, kDotTile>(&row, {}, x, k, out);
  for (int c = 0; c < n; ++c) Dot::template tile<1, 1>(&row, {}, x + c, k, out + c);
}

template <class Dot>
void dot_rows(const char* const* rows, int n, const RowsAhead& ahead, const void* x, int64_t k,
              float* out) {
  int r = 0;
  for (; r + kDotRows <= n; r += kDotRows) {
    Dot::template tile<kDotRows, 1>(rows + r, r == 0 ? ahead : RowsAhead{}, &x, k, out + r);
  }
  for (; r < n; ++r) {
    Dot::template tile<1, 1>(rows + r, r == 0 ? ahead : RowsAhead{}, &x, k, out + r);
  }
}

template <class T>
constexpr RowType of_floats() {
  using D = DotFloats<T>;
  return {{}, 64, &dot<D>, &dot_rows<D>, &axpy_floats<T>, &expand_floats<T>};
}

template <class Block>
constexpr RowType of_blocks() {
  using D = DotBlocks<Block>;
  return {{}, Block::QK, &dot<D>, &dot_rows<D>, &axpy_blocks<Block>, &expand_blocks<Block>};
}

#if defined(__AVX2__)
template <class T, class D = DotDecoded<T>>
constexpr RowType of_decoded(bool quads = false) {
  const ColumnForm x{true, T::kBias, quads};
  return {x, T::Block::QK, &dot<D>, &dot_rows<D>, &axpy_decoded<T>, &expand_decoded<T>};
}
#endif

}  // namespace

const RowType* find_row_type(int type) {
  static constexpr RowType f32 = of_floats<ElemF32>(), f16 = of_floats<ElemF16>(),
                           bf16 = of_floats<ElemBF16>();
  if (type == GF_F32) return &f32;
  if (type == GF_F16) return &f16;
  if (type == GF_BF16) return &bf16;
#if defined(__AVX2__)
#if defined(__AVX512VNNI__)
  static constexpr RowType q4_0 = of_decoded<DecodeQ4_0, DotQ4_0>(true);
#else
  static constexpr RowType q4_0 = of_decoded<DecodeQ4_0>();
#endif
  static constexpr RowType q8_0 = of_decoded<DecodeQ8_0>(), q4_k = of_decoded<DecodeQ4_K>(),
                           q6_k = of_decoded<DecodeQ6_K>();
  if (type == GF_Q8_0) return &q8_0;
  if (type == GF_Q4_0) return &q4_0;
  if (type == GF_Q4_K) return &q4_k;
  if (type == GF_Q6_K) return &q6_k;
#endif
  const RowType* found = nullptr;
  gf_visit_block(type, [&](auto tag) {
    static constexpr RowType t = of_blocks<typename decltype(tag)::Block>();
    found = &t;
  });
  return found;
}

void convert_column(const ColumnForm& form, const float* x, int64_t k, char* out) {
  const SparseActs at(k);
  std::memset(out, 0, at.bytes());
  auto* d = reinterpret_cast<float*>(out);
  auto* sum = reinterpret_cast<float*>(out + at.sum());
  auto* q = reinterpret_cast<int8_t*>(out + at.q());
  auto* start = reinterpret_cast<int32_t*>(out + at.start());
  for (int64_t i = 0; i < k / 32; ++i) {
    int8_t block[32];
    int32_t sums[2], four[8];
    d[i] = quantize_32(x + 32 * i, block, sums);
    sum[i] = d[i] * static_cast<float>(sums[0] + sums[1]);
    for (int j = 0; j < 8; ++j) {
      four[j] = block[4 * j] + block[4 * j + 1] + block[4 * j + 2] + block[4 * j + 3];
    }
    if (form.quads) {
      int8_t* quad = q + i / 4 * 128 + i % 4 * 16;
      std::memcpy(quad, block, 16);
      std::memcpy(quad + 64, block + 16, 16);
      for (int j = 0; j < 4; ++j) start[4 * i + j] = -form.bias * (four[j] + four[j + 4]);
    } else {
      std::memcpy(q + 32 * i, block, 32);
      for (int j = 0; j < 8; ++j) start[8 * i + j] = -form.bias * four[j];
    }
  }
}

}  // namespace gf
