// Packing rows into the interleaved layout of packed.h, and one row back.
#include <cstring>

#include "cpu/packed.h"

namespace {

constexpr int kRows = 16;

// Scales: count items of `unit` bytes from `offset` on.
struct Head {
  uint8_t offset, unit, count;
};

// Rewrites a bit field of n elements. Elements go by chunks of a span of bytes: element e of a
// chunk is in byte e % span, shifted up by bits * (e / span).
template <int bits, int in_span, int out_span, int n>
void change_span(const uint8_t* in, uint8_t* out) {
  constexpr int in_chunk = in_span * 8 / bits, out_chunk = out_span * 8 / bits;
  constexpr int run = in_span < out_span ? in_span : out_span;  // elements that stay neighbours
  constexpr int mask = (1 << bits) - 1;
  std::memset(out, 0, n * bits / 8);
  for (int e = 0; e < n; e += run) {
    const int from = e % in_chunk, to = e % out_chunk;
    const uint8_t* a = in + e / in_chunk * in_span + from % in_span;
    uint8_t* b = out + e / out_chunk * out_span + to % out_span;
    const int down = bits * (from / in_span), up = bits * (to / out_span);
    for (int i = 0; i < run; ++i) b[i] = static_cast<uint8_t>(b[i] | (a[i] >> down & mask) << up);
  }
}

// The same for a word of 32 single bits (span 1) to and from span 4: bit 4i + b goes to bit 8b + i.
// The factors move bits b of a nibble to bits 8b, and back.
void spread_word(const uint8_t* in, uint8_t* out) {
  uint32_t x, y = 0;
  std::memcpy(&x, in, 4);
  for (int i = 0; i < 8; ++i) y |= ((x >> 4 * i & 15) * 0x00204081u & 0x01010101u) << i;
  std::memcpy(out, &y, 4);
}
void gather_word(const uint8_t* in, uint8_t* out) {
  uint32_t x, y = 0;
  std::memcpy(&x, in, 4);
  for (int i = 0; i < 8; ++i) y |= ((x >> i & 0x01010101u) * 0x10204080u >> 28) << 4 * i;
  std::memcpy(out, &y, 4);
}

template <int bytes>
void same_span(const uint8_t* in, uint8_t* out) {
  std::memcpy(out, in, bytes);
}

// A bit field of the quants, and its way to packed order and back. Packed, the span is 4 * bits, so
// that a chunk is 32 elements: every 32 are read in one piece and one shift and one mask unpack
// four of a row.
struct Plane {
  uint8_t offset, bits;
  void (*pack)(const uint8_t* in, uint8_t* out);
  void (*unpack)(const uint8_t* in, uint8_t* out);
};

// A field of a K-quant whose chunks in the file span `span` bytes.
template <int bits, int span>
constexpr Plane plane(uint8_t offset) {
  return {offset, bits, &change_span<bits, span, 4 * bits, 256>,
          &change_span<bits, 4 * bits, span, 256>};
}
// A field of a type of 32 elements that already has the packed span.
template <int bits>
constexpr Plane as_it_is(uint8_t offset) {
  return {offset, bits, &same_span<4 * bits>, &same_span<4 * bits>};
}
constexpr Plane word(uint8_t offset) { return {offset, 1, &spread_word, &gather_word}; }

// A type's block struct, see kernels/quants, as heads and planes.
struct Layout {
  int type;
  int elements;
  int bytes;
  int n_heads;
  Head heads[2];
  int n_planes;
  Plane planes[2];
};

constexpr Layout kLayouts[] = {
    {GF_Q4_0, 32, 18, 1, {{0, 2, 1}}, 1, {as_it_is<4>(2)}},
    {GF_Q4_1, 32, 20, 1, {{0, 2, 2}}, 1, {as_it_is<4>(4)}},
    {GF_Q5_0, 32, 22, 1, {{0, 2, 1}}, 2, {as_it_is<4>(6), word(2)}},
    {GF_Q5_1, 32, 24, 1, {{0, 2, 2}}, 2, {as_it_is<4>(8), word(4)}},
    {GF_Q8_0, 32, 34, 1, {{0, 2, 1}}, 1, {as_it_is<8>(2)}},
    {GF_Q2_K, 256, 84, 2, {{80, 2, 2}, {0, 1, 16}}, 1, {plane<2, 32>(16)}},
    {GF_Q3_K, 256, 110, 2, {{108, 2, 1}, {96, 1, 12}}, 2, {plane<2, 32>(32), plane<1, 32>(0)}},
    {GF_Q4_K, 256, 144, 2, {{0, 2, 2}, {4, 1, 12}}, 1, {plane<4, 32>(16)}},
    {GF_Q5_K, 256, 176, 2, {{0, 2, 2}, {4, 1, 12}}, 2, {plane<4, 32>(48), plane<1, 32>(16)}},
    {GF_IQ4_NL, 32, 18, 1, {{0, 2, 1}}, 1, {as_it_is<4>(2)}},
    {GF_IQ4_XS, 256, 136, 2, {{0, 2, 2}, {4, 1, 4}}, 1, {{8, 4, &same_span<128>, &same_span<128>}}},
    {GF_TQ2_0, 256, 66, 1, {{64, 2, 1}}, 1, {plane<2, 32>(0)}},
    {GF_MXFP4, 32, 17, 1, {{0, 1, 1}}, 1, {as_it_is<4>(1)}},
    {GF_NVFP4,
     64,
     36,
     1,
     {{0, 1, 4}},
     1,
     {{4, 4, &change_span<4, 8, 16, 64>, &change_span<4, 16, 8, 64>}}},
    {GF_Q6_K, 256, 210, 2, {{208, 2, 1}, {192, 1, 16}}, 2, {plane<4, 64>(0), plane<2, 32>(128)}},
};

const Layout* find_layout(int type) {
  for (const Layout& l : kLayouts) {
    if (l.type == type) return &l;
  }
  return nullptr;
}

// Calls piece(bytes, unit, count) for all of a block in packed order: the heads, then for each 32
// elements their part of each plane.
template <class Piece>
void for_pieces(const Layout& l, uint8_t* block, uint8_t (&planes)[2][256], Piece piece) {
  for (int i = 0; i < l.n_heads; ++i) {
    piece(block + l.heads[i].offset, l.heads[i].unit, l.heads[i].count);
  }
  for (int sub = 0; sub < l.elements / 32; ++sub) {
    for (int i = 0; i < l.n_planes; ++i) {
      piece(planes[i] + sub * 4 * l.planes[i].bits, 4, l.planes[i].bits);
    }
  }
}

template <int unit>
void copy_units(const uint8_t* in, int64_t in_stride, uint8_t* out, int64_t out_stride, int count) {
  for (int i = 0; i < count; ++i) std::memcpy(out + i * out_stride, in + i * in_stride, unit);
}

// Copies `count` units from one stride to another.
void copy(int unit, int count, const uint8_t* in, int64_t in_stride, uint8_t* out,
          int64_t out_stride) {
  if (unit == 4) return copy_units<4>(in, in_stride, out, out_stride, count);
  if (unit == 2) return copy_units<2>(in, in_stride, out, out_stride, count);
  copy_units<1>(in, in_stride, out, out_stride, count);
}

constexpr int kMaxBlockBytes = 256;

void pack_group(const Layout& l, const uint8_t* src, uint8_t* dst, int rows, int64_t n_blocks) {
  const int64_t row_bytes = n_blocks * l.bytes;
  if (rows < kRows) std::memset(dst, 0, static_cast<size_t>(row_bytes * kRows));
  for (int64_t ib = 0; ib < n_blocks; ++ib, dst += kRows * l.bytes) {
    for (int r = 0; r < rows; ++r) {
      uint8_t block[kMaxBlockBytes], planes[2][256];
      std::memcpy(block, src + r * row_bytes + ib * l.bytes, static_cast<size_t>(l.bytes));
      for (int i = 0; i < l.n_planes; ++i) {
        l.planes[i].pack(block + l.planes[i].offset, planes[i]);
      }
      uint8_t* out = dst;
      for_pieces(l, block, planes, [&](const uint8_t* piece, int unit, int count) {
        copy(unit, count, piece, unit, out + r * unit, kRows * unit);
        out += kRows * unit * count;
      });
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
  for (int64_t ib = 0; ib < n_blocks; ++ib, block += l.bytes) {
    uint8_t planes[2][256];
    for_pieces(l, block, planes, [&](uint8_t* piece, int unit, int count) {
      copy(unit, count, in + r * unit, kRows * unit, piece, unit);
      in += kRows * unit * count;
    });
    for (int i = 0; i < l.n_planes; ++i) {
      l.planes[i].unpack(planes[i], block + l.planes[i].offset);
    }
  }
}
