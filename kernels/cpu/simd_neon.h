// vf on 64-bit ARM: four floats.
#pragma once

#include <arm_neon.h>

constexpr int VL = 4;
struct vf {
  float32x4_t v;
};
struct vm {  // all bits of a lane set where true
  uint32x4_t m;
};

static inline vf vf_set(float x) { return {vdupq_n_f32(x)}; }
static inline vf vf_load(const float* p) { return {vld1q_f32(p)}; }
static inline vf vf_load_n(const float* p, int n) {
  float lane[4] = {};
  for (int i = 0; i < n; ++i) lane[i] = p[i];
  return vf_load(lane);
}
static inline void vf_store(float* p, vf a) { vst1q_f32(p, a.v); }
static inline void vf_store_n(float* p, vf a, int n) {
  float lane[4];
  vf_store(lane, a);
  for (int i = 0; i < n; ++i) p[i] = lane[i];
}
static inline vf vf_load_f16(const uint16_t* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
}
static inline vf vf_load_bf16(const uint16_t* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))};
}
static inline vf vf_load_i8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))};
}

static inline vf operator+(vf a, vf b) { return {vaddq_f32(a.v, b.v)}; }
static inline vf operator-(vf a, vf b) { return {vsubq_f32(a.v, b.v)}; }
static inline vf operator*(vf a, vf b) { return {vmulq_f32(a.v, b.v)}; }
static inline vf operator/(vf a, vf b) { return {vdivq_f32(a.v, b.v)}; }
static inline vf vf_fma(vf a, vf b, vf c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
static inline vm vf_lt(vf a, vf b) { return {vcltq_f32(a.v, b.v)}; }
static inline vf vf_select(vm m, vf yes, vf no) { return {vbslq_f32(m.m, yes.v, no.v)}; }
// b wherever the comparison is false, NaN included.
static inline vf vf_max(vf a, vf b) { return vf_select(vf_lt(b, a), a, b); }
static inline vf vf_min(vf a, vf b) { return vf_select(vf_lt(a, b), a, b); }
static inline vf vf_sqrt(vf a) { return {vsqrtq_f32(a.v)}; }
static inline vf vf_abs(vf a) { return {vabsq_f32(a.v)}; }
static inline vf vf_sign_of(vf magnitude, vf sign) {
  return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, magnitude.v)};
}
static inline vf vf_round(vf a) { return {vrndnq_f32(a.v)}; }
// a * 2^n for integral |n| <= 252, in two steps so that subnormal results come out right.
static inline vf vf_ldexp(vf a, vf n) {
  const int32x4_t k = vcvtq_s32_f32(n.v), half = vshrq_n_s32(k, 1);
  const auto pow2 = [](int32x4_t e) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
  };
  return {vmulq_f32(vmulq_f32(a.v, pow2(half)), pow2(vsubq_s32(k, half)))};
}

// Neighbours exchanged: lanes 1 0 3 2.
static inline vf vf_swap_pairs(vf a) { return {vrev64q_f32(a.v)}; }

static inline float vf_sum(vf a) {
  const float32x2_t d = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vpadds_f32(d);
}

static inline float vf_greatest(vf a) { return vmaxnmvq_f32(a.v); }

// Lane i of the result is the sum of r[i]'s lanes, added up in the same tree for every i.
static inline vf vf_sum_each(const vf* r) {
  const auto fold = [](float32x4_t a, float32x4_t b) {  // lanes 0 + 2, 1 + 3 of a, then of b
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(x, y)),
                     vreinterpretq_f32_f64(vzip2q_f64(x, y)));
  };
  return {vpaddq_f32(fold(r[0].v, r[1].v), fold(r[2].v, r[3].v))};
}
