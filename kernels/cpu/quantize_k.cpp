// Quantizers of the K-quants, compiled once a library: the search is too large to inline
// everywhere.
#include "quants/quantize_k.h"

#include "quants/traits.h"

void quantize_block(const float* x, block_q2_K* b) { gf_quantize_q2_K(x, b); }
void quantize_block(const float* x, block_q3_K* b) { gf_quantize_q3_K(x, b); }
void quantize_block(const float* x, block_q4_K* b) { gf_quantize_q4_K(x, b); }
void quantize_block(const float* x, block_q5_K* b) { gf_quantize_q5_K(x, b); }
void quantize_block(const float* x, block_q6_K* b) { gf_quantize_q6_K(x, b); }
