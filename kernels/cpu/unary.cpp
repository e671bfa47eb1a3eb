// Element-wise functions of one operand.
#include "cpu/elementwise.h"

GF_KERNEL(silu) { gf_map(op, th, vf_silu); }
GF_KERNEL(gelu) { gf_map(op, th, vf_gelu); }
GF_KERNEL(gelu_erf) { gf_map(op, th, vf_gelu_erf); }
GF_KERNEL(sigmoid) { gf_map(op, th, vf_sigmoid); }
GF_KERNEL(tanh) { gf_map(op, th, vf_tanh); }
GF_KERNEL(exp) { gf_map(op, th, vf_exp); }
GF_KERNEL(sqrt) { gf_map(op, th, vf_sqrt); }
GF_KERNEL(abs) { gf_map(op, th, vf_abs); }
GF_KERNEL(relu) {
  gf_map(op, th, [](vf x) { return vf_max(vf_zero(), x); });
}
GF_KERNEL(neg) {
  gf_map(op, th, [](vf x) { return -x; });
}
GF_KERNEL(sqr) {
  gf_map(op, th, [](vf x) { return x * x; });
}
