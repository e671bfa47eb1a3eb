// Packing rows into the interleaved layout of packed.h, and one row back.
#include <cstring>

#include "cpu/packed.h"

namespace {

constexpr int kRows = 16;

// Bit planes are reordered so that unpacking them takes one shift for four elements, see below.
enum Order : uint8_t { kPlain, kSpreadWord, kSpreadPlanes };
// One field of a block struct: count units of `unit` bytes.
struct Field {
  uint8_t unit;
  uint8_t count;
  Order order = kPlain;
};
struct Layout {
  int type;
  int elements;
  int bytes;
  int n_fields;
  Field fields[4];
};

constexpr Layout kLayouts[] = {
    {GF_Q4_0, 32, 18, 2, {{2, 1}, {4, 4}}},
    {GF_Q4_1, 32, 20, 2, {{2, 2}, {4, 4}}},
    {GF_Q5_0, 32, 22, 3, {{2, 1}, {4, 1, kSpreadWord}, {4, 4}}},
    {GF_Q5_1, 32, 24, 3, {{2, 2}, {4, 1, kSpreadWord}, {4, 4}}},
    {GF_Q8_0, 32, 34, 2, {{2, 1}, {4, 8}}},
    {GF_Q2_K, 256, 84, 3, {{1, 16}, {4, 16}, {2, 2}}},
    {GF_Q3_K, 256, 110, 4, {{4, 8, kSpreadPlanes}, {4, 16}, {1, 12}, {2, 1}}},
    {GF_Q4_K, 256, 144, 3, {{2, 2}, {1, 12}, {4, 32}}},
    {GF_Q5_K, 256, 176, 4, {{2, 2}, {1, 12}, {4, 8, kSpreadPlanes}, {4, 32}}},
    {GF_Q6_K, 256, 210, 4, {{4, 32}, {4, 16}, {1, 16}, {2, 1}}},
};

const Layout* find_layout(int type) {
  for (const Layout& l : kLayouts) {
    if (l.type == type) return &l;
  }
  return nullptr;
}

// Transposes an 8x8 bit matrix, row i in byte i.
uint64_t transpose_bits(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
  return x ^ t ^ (t << 28);
}

// High bits of sub-block s: in the file a word in element order (kSpreadWord) or bit s of byte e
// for element e (kSpreadPlanes). Packed: word s, and there bit 8 * b + i for e = 4 * i + b, so that
// (word >> i) & 0x01010101 is the bits of elements 4i .. 4i + 3.
void spread_bits(Order order, const uint8_t* in, uint8_t* out) {
  if (order == kSpreadWord) {
    uint64_t x = 0;
    for (int i = 0; i < 8; ++i)
      x |= static_cast<uint64_t>(in[i / 2] >> (4 * (i % 2)) & 15) << 8 * i;
    x = transpose_bits(x);
    for (int b = 0; b < 4; ++b) out[b] = static_cast<uint8_t>(x >> 8 * b);
    return;
  }
  for (int b = 0; b < 4; ++b) {
    uint64_t x = 0;
    for (int i = 0; i < 8; ++i) x |= static_cast<uint64_t>(in[4 * i + b]) << 8 * i;
    x = transpose_bits(x);
    for (int s = 0; s < 8; ++s) out[4 * s + b] = static_cast<uint8_t>(x >> 8 * s);
  }
}

void gather_bits(Order order, const uint8_t* in, uint8_t* out) {
  if (order == kSpreadWord) {
    uint64_t x = 0;
    for (int b = 0; b < 4; ++b) x |= static_cast<uint64_t>(in[b]) << 8 * b;
    x = transpose_bits(x);
    for (int i = 0; i < 4; ++i) {
      out[i] = static_cast<uint8_t>((x >> 16 * i & 15) | (x >> (16 * i + 8) & 15) << 4);
    }
    return;
  }
  for (int b = 0; b < 4; ++b) {
    uint64_t x = 0;
    for (int s = 0; s < 8; ++s) x |= static_cast<uint64_t>(in[4 * s + b]) << 8 * s;
    x = transpose_bits(x);
    for (int i = 0; i < 8; ++i) out[4 * i + b] = static_cast<uint8_t>(x >> 8 * i);
  }
}

// count units of `unit` bytes from one stride to another.
template <int unit>
void copy_units(const uint8_t* in, int64_t in_stride, uint8_t* out, int64_t out_stride, int count) {
  for (int i = 0; i < count; ++i) std::memcpy(out + i * out_stride, in + i * in_stride, unit);
}

void copy_field(const Field& f, const uint8_t* in, int64_t in_stride, uint8_t* out,
                int64_t out_stride) {
  if (f.unit == 4) return copy_units<4>(in, in_stride, out, out_stride, f.count);
  if (f.unit == 2) return copy_units<2>(in, in_stride, out, out_stride, f.count);
  copy_units<1>(in, in_stride, out, out_stride, f.count);
}

void pack_group(const Layout& l, const uint8_t* src, uint8_t* dst, int rows, int64_t n_blocks) {
  const int64_t row_bytes = n_blocks * l.bytes;
  if (rows < kRows) std::memset(dst, 0, static_cast<size_t>(row_bytes * kRows));
  for (int64_t ib = 0; ib < n_blocks; ++ib, dst += kRows * l.bytes) {
    for (int r = 0; r < rows; ++r) {
      const uint8_t* in = src + r * row_bytes + ib * l.bytes;
      uint8_t* out = dst;
      for (int i = 0; i < l.n_fields; ++i) {
        const Field& f = l.fields[i];
        uint8_t spread[32];
        if (f.order != kPlain) spread_bits(f.order, in, spread);
        copy_field(f, f.order == kPlain ? in : spread, f.unit, out + r * f.unit, kRows * f.unit);
        in += f.unit * f.count;
        out += kRows * f.unit * f.count;
      }
    }
  }
}

}  // namespace

GF_EXPORT int64_t gf_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols) {
  const Layout* l = find_layout(type);
  if (!l || n_rows <= 0 || n_cols <= 0 || n_cols % l->elements != 0) return 0;
  const int64_t n_blocks = n_cols / l->elements;
  if (n_blocks > INT64_MAX / l->bytes || n_rows > INT64_MAX - kRows) return 0;
  const int64_t rows = (n_rows + kRows - 1) / kRows * kRows;
  if (rows > INT64_MAX / (n_blocks * l->bytes)) return 0;
  return rows * n_blocks * l->bytes;
}

GF_EXPORT int32_t gf_pack_rows(int32_t type, const void* src, void* dst, int64_t n_rows,
                               int64_t n_cols, int64_t group_begin, int64_t group_end) {
  if (gf_packed_bytes(type, n_rows, n_cols) == 0) return -1;
  if (group_begin < 0 || group_end > (n_rows + kRows - 1) / kRows) return -1;
  const Layout& l = *find_layout(type);
  const int64_t n_blocks = n_cols / l.elements;
  const int64_t group_bytes = kRows * n_blocks * l.bytes;
  for (int64_t g = group_begin; g < group_end; ++g) {
    const int64_t left = n_rows - g * kRows;
    pack_group(l, static_cast<const uint8_t*>(src) + g * group_bytes,
               static_cast<uint8_t*>(dst) + g * group_bytes,
               left < kRows ? static_cast<int>(left) : kRows, n_blocks);
  }
  return 0;
}

void gf_unpack_row(int type, const void* packed, int64_t n_cols, int64_t row, void* out) {
  const Layout& l = *find_layout(type);
  const int64_t n_blocks = n_cols / l.elements;
  const auto* in = static_cast<const uint8_t*>(packed) + row / kRows * kRows * n_blocks * l.bytes;
  auto* block = static_cast<uint8_t*>(out);
  const int r = static_cast<int>(row % kRows);
  for (int64_t ib = 0; ib < n_blocks; ++ib) {
    for (int i = 0; i < l.n_fields; ++i) {
      const Field& f = l.fields[i];
      uint8_t spread[32];
      uint8_t* to = f.order == kPlain ? block : spread;
      copy_field(f, in + r * f.unit, kRows * f.unit, to, f.unit);
      if (f.order != kPlain) gather_bits(f.order, spread, block);
      in += kRows * f.unit * f.count;
      block += f.unit * f.count;
    }
  }
}
