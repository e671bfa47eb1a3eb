// The compiler's x86 intrinsics. GCC 12 warns of uninitialized values inside its own AVX-512 header
// (its bug 105593), so the header is read with those warnings off, before anything else reads it.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
