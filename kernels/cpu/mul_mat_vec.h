// The vector operations of mul_mat for the instruction set this library is built for.
#pragma once

#include "cpu/simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "cpu/mul_mat_vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/mul_mat_vec_avx2.h"
#elif defined(GF_NEON)
#include "cpu/mul_mat_vec_neon.h"
#else
#include "cpu/mul_mat_vec_plain.h"
#endif
