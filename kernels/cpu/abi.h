// The one interface between Python and the CPU kernels, and between the kernels and the executor.
//
// Plain C structs, mirrored field by field by ctypes in engine/backends/cpu/abi.py. A kernel is an
// exported function `gf_op_<op name>`; Python finds it by that name, so adding an op is adding a
// file.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define GF_EXPORT extern "C" __declspec(dllexport)
#else
#define GF_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#define GF_ABI_VERSION 3
#define GF_MAX_DIMS 4
#define GF_MAX_SRC 8
#define GF_PARAM_BYTES 64

// Type numbers are GGUF's own.
enum gf_type {
  GF_F32 = 0,
  GF_F16 = 1,
  GF_Q4_0 = 2,
  GF_Q4_1 = 3,
  GF_Q5_0 = 6,
  GF_Q5_1 = 7,
  GF_Q8_0 = 8,
  GF_Q2_K = 10,
  GF_Q3_K = 11,
  GF_Q4_K = 12,
  GF_Q5_K = 13,
  GF_Q6_K = 14,
  GF_IQ2_XXS = 16,
  GF_IQ2_XS = 17,
  GF_IQ3_XXS = 18,
  GF_IQ1_S = 19,
  GF_IQ4_NL = 20,
  GF_IQ3_S = 21,
  GF_IQ2_S = 22,
  GF_IQ4_XS = 23,
  GF_I8 = 24,
  GF_I16 = 25,
  GF_I32 = 26,
  GF_I64 = 27,
  GF_F64 = 28,
  GF_IQ1_M = 29,
  GF_BF16 = 30,
  GF_TQ1_0 = 34,
  GF_TQ2_0 = 35,
  GF_MXFP4 = 39,
  GF_NVFP4 = 40,
};

// Bits of gf_tensor.flags.
enum gf_flag {
  GF_PACKED = 1,  // rows interleaved sixteen by sixteen, see packed.h
};

// ggml's convention: ne[0] is the innermost dimension, nb[] are strides in bytes; for a quantized
// type nb[0] is the size of one block and ne[0] still counts elements. Unused dimensions have ne
// = 1.
struct gf_tensor {
  void* data;
  int64_t ne[GF_MAX_DIMS];
  int64_t nb[GF_MAX_DIMS];
  int32_t type;
  int32_t flags;
};

static_assert(sizeof(struct gf_tensor) == 80, "mirrored in engine/backends/cpu/abi.py");

struct gf_op;
struct gf_thread;
typedef void (*gf_kernel)(const struct gf_op* op, struct gf_thread* th);

// One record of the flat program that the executor runs. An absent optional source has data ==
// NULL.
struct gf_op {
  gf_kernel fn;
  gf_kernel init;   // may be NULL; run by all threads, then a barrier, then fn (ggml's INIT phase)
  int64_t scratch;  // bytes this op needs in gf_thread.scratch, shared by all threads
  int32_t n_src;
  int32_t max_threads;  // 1 for ops too small to be worth splitting; 0 means no limit
  struct gf_tensor dst;
  struct gf_tensor src[GF_MAX_SRC];
  unsigned char
      params[GF_PARAM_BYTES];  // the op's parameters in the order its OpSpec declares them
};

static_assert(sizeof(struct gf_op) == 32 + (1 + GF_MAX_SRC) * 80 + GF_PARAM_BYTES,
              "mirrored in engine/backends/cpu/abi.py");

// Where the threads of an op meet within it, see gf_meet. Both are 0 when the executor starts; one
// serves all ops of a pool, for no thread begins an op before all have left the one before.
struct gf_barrier {
  int32_t arrived;  // threads that wait
  int32_t round;    // meetings so far
};

// What a kernel knows of the thread that runs it. Threads with ith >= nth of an op are not called.
struct gf_thread {
  int32_t ith;
  int32_t nth;
  unsigned char* scratch;  // 64-byte aligned, shared by all threads of the op
  int64_t scratch_bytes;
  int64_t* next;  // shared counter, 0 when the op starts: for work stealing (see gf_steal)
  struct gf_barrier* barrier;  // for phases of one op that the executor does not part (see gf_meet)
};
