// The packed layout of quantized matrices: groups of 16 rows, interleaved.
//
// A group holds its rows' blocks in order. A block holds its scales, then for each 32 elements
// their low bits and their high bits. Each of these lies interleaved over the 16 rows in units of
// its own size: 2 bytes for float16 scales, 1 for small integer scales, 4 for quants, so that one
// 64-byte vector holds 4 bytes of each row. The size is that of the rows, padded with zero blocks
// to a multiple of 16.
#pragma once

#include <stdint.h>

#include "cpu/abi.h"

// Bytes of a packed matrix of n_rows x n_cols; 0 when the type has no packed layout, n_cols is no
// multiple of its block or the size does not fit.
GF_EXPORT int64_t gf_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols);

// Packs groups [group_begin, group_end) of the contiguous rows at src into the matrix at dst.
// Returns 0, or -1 when gf_packed_bytes would be 0 or the groups are not in the matrix.
GF_EXPORT int32_t gf_pack_rows(int32_t type, const void* src, void* dst, int64_t n_rows,
                               int64_t n_cols, int64_t group_begin, int64_t group_end);

// The inverse for one row: its blocks as in the file, to `out`. The type must have a packed layout.
void gf_unpack_row(int type, const void* packed, int64_t n_cols, int64_t row, void* out);
