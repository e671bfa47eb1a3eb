// Quantizers that search, compiled once a library: they are too large to inline everywhere.
#include "quants/quantize_k.h"

#include "quants/traits.h"

void quantize_block(const float* x, block_q2_K* b) { gf_quantize_q2_K(x, b); }
void quantize_block(const float* x, block_q3_K* b) { gf_quantize_q3_K(x, b); }
void quantize_block(const float* x, block_q4_K* b) { gf_quantize_q4_K(x, b); }
void quantize_block(const float* x, block_q5_K* b) { gf_quantize_q5_K(x, b); }
void quantize_block(const float* x, block_q6_K* b) { gf_quantize_q6_K(x, b); }
void quantize_block(const float* x, block_iq4_nl* b) { gf_quantize_iq4_nl(x, b); }
void quantize_block(const float* x, block_iq4_xs* b) { gf_quantize_iq4_xs(x, b); }
void quantize_block(const float* x, block_mxfp4* b) { gf_quantize_mxfp4(x, b); }
void quantize_block(const float* x, block_nvfp4* b) { gf_quantize_nvfp4(x, b); }
void quantize_block(const float* x, block_tq1_0* b) { gf_quantize_tq1_0(x, b); }
void quantize_block(const float* x, block_tq2_0* b) { gf_quantize_tq2_0(x, b); }
