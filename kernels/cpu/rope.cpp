// rope: rotary position embedding. INIT tabulates cosines and sines once a token; every head reads
// them. Angles are kept in double until they are reduced, so that large positions stay exact.
#include <math.h>

#include "cpu/elementwise.h"

namespace {

enum rope_mode { ROPE_NORM, ROPE_NEOX, ROPE_2D };

struct rope_params {
  int32_t n_dims, mode, n_ctx_orig;
  float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
  int32_t whole_pairs;
};

// Sine and cosine through the nearest multiple of pi/2; polynomials fitted on [-pi/4, pi/4].
void sin_cos(double angle, float* sine, float* cosine) {
  constexpr double round = 0x1.8p52;  // adding it leaves no fraction bits
  const double turns = (angle * 0.63661977236758134 + round) - round;
  const double reduced = angle - turns * 1.5707963267948966;
  const float r = static_cast<float>(reduced), z = r * r;
  const float s = r + r * z * (-0.166666549f + z * (0.00833217354f + z * -0.00019516655f));
  const float c =
      1.0f - 0.5f * z + z * z * (0.0416666467f + z * (-0.00138873614f + z * 2.44377292e-5f));
  const auto quadrant = static_cast<int64_t>(turns) & 3;
  const float a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
  *sine = quadrant & 2 ? -a : a;
  *cosine = quadrant == 1 || quadrant == 2 ? -b : b;
}

constexpr double kPi = 3.14159265358979323846;  // M_PI is not in every cmath

// The pairs between which YaRN blends (Peng et al. 2023, section 3.2), in units of pairs.
struct yarn_range {
  double low, high;
  yarn_range(const rope_params& p, int n_dims) {
    const auto pair = [&](double turns) {
      return n_dims * log(p.n_ctx_orig / (turns * 2 * kPi)) / (2 * log(double(p.freq_base)));
    };
    low = pair(p.beta_fast);
    high = pair(p.beta_slow);
    if (p.whole_pairs) {
      low = floor(low);
      high = ceil(high);
    }
    low = fmax(0.0, low);
    high = fmin(n_dims - 1.0, high);
  }
  double ramp(int64_t pair) const {
    return 1.0 - fmin(1.0, fmax(0.0, (pair - low) / fmax(0.001, high - low)));
  }
};

// Floats a token's table takes: n_dims cosines, then n_dims sines. Norm mode stores every cosine
// twice and the sines as -s, s, so that a rotation is x * c + swapped(x) * s.
int64_t table_size(const rope_params& p) { return 2 * vf_padded(p.n_dims); }

void fill_table(const gf_op* op, const gf_thread* th, const rope_params& p) {
  const int parts = p.mode == ROPE_2D ? 2 : 1;
  const int n_dims = p.n_dims / parts, half = n_dims / 2;
  const int64_t n_tok = op->src[0].ne[2], stride = table_size(p), sines = stride / 2;
  const float* const factors = op->n_src > 2 ? static_cast<const float*>(op->src[2].data) : nullptr;
  auto* const table = reinterpret_cast<float*>(th->scratch);
  const bool yarn = p.ext_factor != 0.0f;
  const yarn_range range(p, n_dims);
  float magnitude = p.attn_factor;
  if (yarn) magnitude *= static_cast<float>(1.0 + 0.1 * log(1.0 / p.freq_scale));
  const double step = pow(p.freq_base, -2.0 / n_dims);
  const gf_range pairs = gf_split(half, th);
  double frequency = 1.0;
  for (int64_t i = 0; i < pairs.end; ++i, frequency *= step) {
    if (i < pairs.begin) continue;  // the product has one value whatever the split
    for (int part = 0; part < parts; ++part) {
      const int64_t k = part * half + i;
      const double extrapolated = factors ? frequency / factors[k] : frequency;
      double angle = extrapolated * p.freq_scale;
      if (yarn) {
        const double mix = range.ramp(i) * p.ext_factor;
        angle = angle * (1.0 - mix) + extrapolated * mix;
      }
      const auto* const pos = reinterpret_cast<const int32_t*>(
          static_cast<const char*>(op->src[1].data) + part * op->src[1].nb[1]);
      for (int64_t t = 0; t < n_tok; ++t) {
        float s, c;
        sin_cos(pos[t] * angle, &s, &c);
        s *= magnitude;
        c *= magnitude;
        float* const row = table + t * stride;
        if (p.mode == ROPE_NORM) {
          row[2 * k] = row[2 * k + 1] = c;
          row[sines + 2 * k] = -s;
          row[sines + 2 * k + 1] = s;
        } else {
          row[k] = c;
          row[sines + k] = s;
        }
      }
    }
  }
}

// Pairs (2i, 2i + 1).
void rotate_norm(const float* x, float* y, const float* c, const float* s, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) {
    const vf v = vf_load_to(x + i, n - i);
    const vf turned = vf_swap_pairs(v) * vf_load_to(s + i, n - i);
    vf_store_to(y + i, vf_fma(v, vf_load_to(c + i, n - i), turned), n - i);
  }
}

// Pairs (i, i + half).
void rotate_neox(const float* x, float* y, const float* c, const float* s, int64_t half) {
  for (int64_t i = 0; i < half; i += VL) {
    const vf a = vf_load_to(x + i, half - i), b = vf_load_to(x + half + i, half - i);
    const vf vc = vf_load_to(c + i, half - i), vs = vf_load_to(s + i, half - i);
    vf_store_to(y + i, vf_fma(a, vc, -(b * vs)), half - i);
    vf_store_to(y + half + i, vf_fma(a, vs, b * vc), half - i);
  }
}

void copy_rest(const float* x, float* y, int64_t begin, int64_t end) {
  if (x != y && begin < end) std::memcpy(y + begin, x + begin, (end - begin) * sizeof(float));
}

}  // namespace

GF_KERNEL_SCRATCH(rope) {
  return op->src[0].ne[2] * table_size(gf_params<rope_params>(op)) * int64_t{sizeof(float)};
}

GF_KERNEL_INIT(rope) { fill_table(op, th, gf_params<rope_params>(op)); }

GF_KERNEL(rope) {
  const auto p = gf_params<rope_params>(op);
  const int64_t hd = op->dst.ne[0], stride = table_size(p);
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t k = rows.begin; k < rows.end; ++k) {
    const gf_row r = gf_row_index(op->dst, k);  // i1 is the head, i2 the token
    const auto* const x = reinterpret_cast<const float*>(gf_row_ptr(op->src[0], r));
    auto* const y = reinterpret_cast<float*>(gf_row_ptr(op->dst, r));
    const float* const c = reinterpret_cast<const float*>(th->scratch) + r.i2 * stride;
    const float* const s = c + stride / 2;
    if (p.mode == ROPE_NORM) {
      rotate_norm(x, y, c, s, p.n_dims);
      copy_rest(x, y, p.n_dims, hd);
    } else if (p.mode == ROPE_NEOX) {
      rotate_neox(x, y, c, s, p.n_dims / 2);
      copy_rest(x, y, p.n_dims, hd);
    } else {
      const int64_t quarter = p.n_dims / 4;
      for (int64_t part = 0; part < 2; ++part) {
        const float* const half_x = x + part * (hd / 2);
        float* const half_y = y + part * (hd / 2);
        rotate_neox(half_x, half_y, c + part * quarter, s + part * quarter, quarter);
        copy_rest(half_x, half_y, p.n_dims / 2, hd / 2);
      }
    }
  }
}
