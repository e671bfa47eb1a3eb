// Row-level access by type number, for kernels that take any type (get_rows, set_rows, cpy, ...).
// CPU only; CUDA kernels are compiled for one type and include its file.
#pragma once

#include "iq1_m.h"
#include "iq1_s.h"
#include "iq2_s.h"
#include "iq2_xs.h"
#include "iq2_xxs.h"
#include "iq3_s.h"
#include "iq3_xxs.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "nvfp4.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"
#include "tq1_0.h"
#include "tq2_0.h"

// Numbers of the plain types; a quantized type carries its own in block_x::TYPE.
enum { GF_TYPE_F32 = 0, GF_TYPE_F16 = 1, GF_TYPE_BF16 = 30 };

template <class B>
struct gf_block_tag {
  typedef B Block;
};

// Calls visit(gf_block_tag<block_x>()) for a quantized type that can be written; false for others.
// This and the next function are the one list of quantized types on the C++ side.
template <class Visit>
static inline bool gf_visit_writable(int type, Visit visit) {
  switch (type) {
    case block_q4_0::TYPE:
      return visit(gf_block_tag<block_q4_0>()), true;
    case block_q4_1::TYPE:
      return visit(gf_block_tag<block_q4_1>()), true;
    case block_q5_0::TYPE:
      return visit(gf_block_tag<block_q5_0>()), true;
    case block_q5_1::TYPE:
      return visit(gf_block_tag<block_q5_1>()), true;
    case block_q8_0::TYPE:
      return visit(gf_block_tag<block_q8_0>()), true;
    case block_q2_K::TYPE:
      return visit(gf_block_tag<block_q2_K>()), true;
    case block_q3_K::TYPE:
      return visit(gf_block_tag<block_q3_K>()), true;
    case block_q4_K::TYPE:
      return visit(gf_block_tag<block_q4_K>()), true;
    case block_q5_K::TYPE:
      return visit(gf_block_tag<block_q5_K>()), true;
    case block_q6_K::TYPE:
      return visit(gf_block_tag<block_q6_K>()), true;
    case block_iq4_nl::TYPE:
      return visit(gf_block_tag<block_iq4_nl>()), true;
    case block_iq4_xs::TYPE:
      return visit(gf_block_tag<block_iq4_xs>()), true;
    case block_tq1_0::TYPE:
      return visit(gf_block_tag<block_tq1_0>()), true;
    case block_tq2_0::TYPE:
      return visit(gf_block_tag<block_tq2_0>()), true;
    case block_mxfp4::TYPE:
      return visit(gf_block_tag<block_mxfp4>()), true;
    case block_nvfp4::TYPE:
      return visit(gf_block_tag<block_nvfp4>()), true;
  }
  return false;
}

// The same for every quantized type.
template <class Visit>
static inline bool gf_visit_block(int type, Visit visit) {
  switch (type) {
    case block_iq1_m::TYPE:
      return visit(gf_block_tag<block_iq1_m>()), true;
    case block_iq1_s::TYPE:
      return visit(gf_block_tag<block_iq1_s>()), true;
    case block_iq2_s::TYPE:
      return visit(gf_block_tag<block_iq2_s>()), true;
    case block_iq2_xs::TYPE:
      return visit(gf_block_tag<block_iq2_xs>()), true;
    case block_iq2_xxs::TYPE:
      return visit(gf_block_tag<block_iq2_xxs>()), true;
    case block_iq3_s::TYPE:
      return visit(gf_block_tag<block_iq3_s>()), true;
    case block_iq3_xxs::TYPE:
      return visit(gf_block_tag<block_iq3_xxs>()), true;
  }
  return gf_visit_writable(type, visit);
}

// Elements a block, 1 for plain types, 0 for a type this file does not know.
static inline int gf_block(int type) {
  if (type == GF_TYPE_F32 || type == GF_TYPE_F16 || type == GF_TYPE_BF16) return 1;
  int n = 0;
  gf_visit_block(type, [&](auto tag) { n = decltype(tag)::Block::QK; });
  return n;
}

// Bytes a block, 0 for a type this file does not know.
static inline int gf_block_bytes(int type) {
  if (type == GF_TYPE_F32) return 4;
  if (type == GF_TYPE_F16 || type == GF_TYPE_BF16) return 2;
  int n = 0;
  gf_visit_block(type, [&](auto tag) { n = (int)sizeof(typename decltype(tag)::Block); });
  return n;
}

// Bytes of a contiguous row of n elements; -1 for an unknown type or a row that splits a block.
static inline gf_i64 gf_row_bytes(int type, gf_i64 n) {
  const int block = gf_block(type);
  if (block == 0 || n < 0 || n % block != 0) return -1;
  return n / block * gf_block_bytes(type);
}

// y[0..n) = the row's values. The type must be known and n a multiple of gf_block(type). This and
// gf_quantize_row are in cpu/quantize.cpp, compiled once a library: nearly every kernel calls them.
void gf_dequantize_row(int type, const void* row, float* y, gf_i64 n);

// Whether rows can be written in the type.
static inline bool gf_writable(int type) {
  return gf_block(type) == 1 || gf_visit_writable(type, [](auto) {});
}

// row = x[0..n) in the given type, which is writable; n is a multiple of gf_block(type).
void gf_quantize_row(int type, const float* x, void* row, gf_i64 n);
