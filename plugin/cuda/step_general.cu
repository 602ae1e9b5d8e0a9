/* The step for any sizes and dtypes: K, V up to 1024, L up to 64, element-aligned everything.
 *
 * One block per (row, value head, 32 rows of the state). It walks the channels in tiles of 128, one channel per
 * thread: first to form each pending record's decayed key and its scores against q and k and to read the state, then,
 * if the step flushes, once more to fold. Written to be read beside maths.md; the tuned kernels (step_tile.cuh) do
 * the same sums in the same way, faster.
 */
#include "step_math.cuh"
#include "stream_order.cuh"
#include "variants.h"

#define ALL   0xffffffffu
#define TILE  RSSM_CUDA_GENERAL_THREADS /* channels at once */
#define ROWS  RSSM_CUDA_GENERAL_ROWS
#define WARPS (TILE / 32)
#define WROWS (ROWS / WARPS) /* state rows per warp */
#define MAXL  64

struct general_shared {
    float w[MAXL][TILE];  /* k_j exp(G - G_j), for Mamba-2 times dt_j */
    float x[2][TILE];     /* q and k, normalised and scaled */
    float e[TILE];        /* exp(G), the token's gate included */
    float score[MAXL][2]; /* w_j . x */
    float decay[MAXL];    /* exp(G - G_j) where it is one number per head */
    float d[ROWS];        /* the token's d, rounded to the ring dtype */
    float red[WARPS][3];
    float gate, decay_total; /* the token's g or dt; exp(G) */
};

/* One (row, head) seen by a thread. */
struct general_ctx {
    int64_t row, slot;
    int h, hv, m; /* m pending records */
    int base;
    float rate;       /* exp(A_log) */
    float decay_rate; /* A of Mamba-2, 1 otherwise: the gate in the ring times this is the log decay */
    float q_scale, k_scale;
};

DEVICE float warp_sum(float x)
{
    for (int o = 16; o; o /= 2)
        x += __shfl_xor_sync(ALL, x, o);
    return x;
}

DEVICE int ring_row(const rssm_step &s, const general_ctx &c, int j)
{
    const int p = c.base + j;
    return p >= s.R ? p - s.R : p;
}

DEVICE int64_t k_at(const rssm_step &s, const general_ctx &c, int j, int ch)
{
    return c.slot * s.k_cache.slot + ((int64_t)c.h * s.R + ring_row(s, c, j)) * s.K + ch;
}

DEVICE int64_t d_at(const rssm_step &s, const general_ctx &c, int j, int v)
{
    return c.slot * s.d_cache.slot + ((int64_t)c.hv * s.R + ring_row(s, c, j)) * s.V + v;
}

DEVICE int64_t g_at(const rssm_step &s, const general_ctx &c, int j, int ch)
{
    const int64_t width = s.family == KDA ? s.K : 1;
    return c.slot * s.g_cache.slot + ((int64_t)c.hv * s.R + ring_row(s, c, j)) * width + ch;
}

DEVICE float bias_at(const rssm_step &s, int64_t i)
{
    return s.dt_bias.data ? load_any(s.dt_bias.data, i, s.dt_bias.dtype) : 0.0f;
}

DEVICE float q_in(const rssm_step &s, const general_ctx &c, int ch)
{
    return load_any(s.q.data, c.row * s.q.row + (int64_t)c.h * s.K + ch, s.q.dtype);
}

DEVICE float k_in(const rssm_step &s, const general_ctx &c, int ch)
{
    return load_any(s.k.data, c.row * s.k.row + (int64_t)c.h * s.K + ch, s.k.dtype);
}

/* KDA's gate of one channel. */
DEVICE float gate_in(const rssm_step &s, const general_ctx &c, int ch)
{
    const int64_t i = (int64_t)c.hv * s.K + ch;
    return log_gate(s, load_any(s.a.data, c.row * s.a.row + i, s.a.dtype) + bias_at(s, i), c.rate);
}

/* Thread t fills column t of w, x and e for channel k0 + t. */
DEVICE void fill_tile(const rssm_step &s, const general_ctx &c, general_shared *sh, int k0, int t)
{
    const int ch = k0 + t;
    if (ch >= s.K) {
        sh->x[0][t] = sh->x[1][t] = sh->e[t] = 0.0f;
        for (int j = 0; j < c.m; ++j)
            sh->w[j][t] = 0.0f;
        return;
    }
    sh->x[0][t] = q_in(s, c, ch) * c.q_scale;
    sh->x[1][t] = k_in(s, c, ch) * c.k_scale;
    float suffix = s.family == KDA ? gate_in(s, c, ch) : 0.0f; /* G - G_j: gates after record j, newest first */
    for (int j = c.m - 1; j >= 0; --j) {
        const float kj = load_any(s.k_cache.data, k_at(s, c, j, ch), s.k_cache.dtype);
        sh->w[j][t] = kj * (s.family == KDA ? expf(suffix) : sh->decay[j]);
        if (s.family == KDA)
            suffix += ((const float *)s.g_cache.data)[g_at(s, c, j, ch)];
    }
    sh->e[t] = s.family == KDA ? expf(suffix) : sh->decay_total;
}

/* Thread j forms the decay of record j, for families with one gate per head; thread m the total. */
DEVICE void fill_decay(const rssm_step &s, const general_ctx &c, general_shared *sh, int t)
{
    if (s.family == KDA || t > c.m)
        return;
    float sum = 0.0f, own = 1.0f; /* own: dt_j */
    const int first = t == c.m ? 0 : t + 1;
    for (int j = c.m - 1; j >= first; --j)
        sum += ((const float *)s.g_cache.data)[g_at(s, c, j, 0)];
    sum += sh->gate;
    if (s.family == MAMBA2 && t < c.m)
        own = ((const float *)s.g_cache.data)[g_at(s, c, t, 0)];
    if (t == c.m)
        sh->decay_total = expf(c.decay_rate * sum);
    else
        sh->decay[t] = own * expf(c.decay_rate * sum);
}

extern "C" __global__ void __launch_bounds__(TILE) rssm_step_general(const __grid_constant__ rssm_step s)
{
    __shared__ general_shared sh;
    wait_for_predecessors();
    const int t = threadIdx.x, w = t >> 5, lane = t & 31;
    const int slices = (s.V + ROWS - 1) / ROWS;
    general_ctx c;
    c.row = (int64_t)blockIdx.z * 65535 + blockIdx.y;
    if (c.row >= s.B)
        return;
    c.hv = blockIdx.x / slices;
    c.h = c.hv / (s.HV / s.H);
    const int v0 = blockIdx.x % slices * ROWS + w * WROWS; /* first state row of this warp */
    const int my_v = v0 + lane;
    const bool mine = lane < WROWS && my_v < s.V;
    const int64_t my_at = (int64_t)c.hv * s.V + my_v;
    bool hit = false;

    const row_info ri = read_row(s, c.row);
    if (!ri.valid) {
        if (mine)
            store_any(s.out, c.row * s.out_row + my_at, 0.0f, s.out_dtype, &hit);
        raise_fault(s, ri.bad && t == 0 && blockIdx.x == 0, RSSM_FAULTBIT_CURSOR);
        return;
    }
    c.slot = ri.slot;
    c.base = ri.base;
    c.m = ri.count;

    /* Norms, and the token's scalar gate. */
    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
    for (int ch = t; ch < s.K; ch += TILE) {
        const float q = q_in(s, c, ch), k = k_in(s, c, ch);
        qq += q * q;
        kk += k * k;
        qk += q * k;
    }
    qq = warp_sum(qq);
    kk = warp_sum(kk);
    qk = warp_sum(qk);
    if (lane == 0) {
        sh.red[w][0] = qq;
        sh.red[w][1] = kk;
        sh.red[w][2] = qk;
    }
    const float alog = s.A_log.data ? load_any(s.A_log.data, c.hv, s.A_log.dtype) : 0.0f;
    c.rate = expf(alog);
    c.decay_rate = s.family != MAMBA2 ? 1.0f : s.flags & RSSM_STEP_A_IS_DECAY ? alog : -c.rate;
    if (s.family != KDA && t == 0) {
        const float x = load_any(s.a.data, c.row * s.a.row + c.hv, s.a.dtype) + bias_at(s, c.hv);
        sh.gate = s.family == GDN ? log_gate(s, x, c.rate) : time_step(s, x);
    }
    if (t < MAXL)
        sh.score[t][0] = sh.score[t][1] = 0.0f;
    __syncthreads();
    qq = kk = qk = 0.0f;
    for (int i = 0; i < WARPS; ++i) {
        qq += sh.red[i][0];
        kk += sh.red[i][1];
        qk += sh.red[i][2];
    }
    const bool norm = s.family != MAMBA2 && (s.flags & RSSM_STEP_QK_NORM);
    c.q_scale = s.family == MAMBA2 ? 1.0f : norm ? s.scale / sqrtf(qq + s.norm_eps) : s.scale;
    c.k_scale = norm ? 1.0f / sqrtf(kk + s.norm_eps) : 1.0f;
    fill_decay(s, c, &sh, t);
    __syncthreads();

    /* Scores of the records, and the state's part of the readouts. */
    float acc[WROWS][2];
    for (int i = 0; i < WROWS; ++i)
        acc[i][0] = acc[i][1] = 0.0f;
    const int64_t state_at = c.slot * s.state.slot + (int64_t)c.hv * s.V * s.K;
    for (int k0 = 0; k0 < s.K; k0 += TILE) {
        fill_tile(s, c, &sh, k0, t);
        __syncthreads();
        for (int j = w; j < c.m; j += WARPS) {
            float x0 = 0.0f, x1 = 0.0f;
            for (int n = lane; n < TILE; n += 32) {
                x0 += sh.w[j][n] * sh.x[0][n];
                x1 += sh.w[j][n] * sh.x[1][n];
            }
            x0 = warp_sum(x0);
            x1 = warp_sum(x1);
            if (lane == 0) {
                sh.score[j][0] += x0;
                sh.score[j][1] += x1;
            }
        }
        for (int n = lane; n < TILE && k0 + n < s.K; n += 32) {
            const float y0 = sh.e[n] * sh.x[0][n], y1 = sh.e[n] * sh.x[1][n];
#pragma unroll
            for (int i = 0; i < WROWS; ++i) {
                if (v0 + i < s.V) {
                    const float x = load_any(s.state.data, state_at + (int64_t)(v0 + i) * s.K + k0 + n, s.state.dtype);
                    acc[i][0] += x * y0;
                    acc[i][1] += x * y1;
                }
            }
        }
        __syncthreads();
    }

    /* Lane i of a warp finishes its row i. */
    float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
    for (int i = 0; i < WROWS; ++i) {
        const float x0 = warp_sum(acc[i][0]), x1 = warp_sum(acc[i][1]);
        if (lane == i) {
            sum0 = x0;
            sum1 = x1;
        }
    }
    if (mine) {
        for (int j = 0; j < c.m; ++j) {
            const float dj = load_any(s.d_cache.data, d_at(s, c, j, my_v), s.d_cache.dtype);
            sum0 += sh.score[j][0] * dj;
            sum1 += sh.score[j][1] * dj;
        }
        const float v = load_any(s.v.data, c.row * s.v.row + my_at, s.v.dtype);
        float d, out;
        if (s.family == MAMBA2) {
            d = v;
            out = sum0 + sh.gate * qk * v;
            if (s.D.data)
                out += load_any(s.D.data, c.hv, s.D.dtype) * v;
            if (s.z.data) {
                const float z = load_any(s.z.data, c.row * s.z.row + my_at, s.z.dtype);
                out *= z * sigmoid(z);
            }
        } else {
            const float beta = sigmoid(load_any(s.b.data, c.row * s.b.row + c.hv, s.b.dtype)) * s.beta_scale;
            d = beta * (v - sum1);
            out = sum0 + d * (qk * c.q_scale * c.k_scale);
        }
        store_any(s.out, c.row * s.out_row + my_at, out, s.out_dtype, &hit);
        raise_fault(s, hit, RSSM_FAULTBIT_OUTPUT);
        hit = false;
        if (ri.flush)
            sh.d[w * WROWS + lane] = round_to(d, s.d_cache.dtype, &hit);
        else
            store_any(s.d_cache.data, d_at(s, c, c.m, my_v), d, s.d_cache.dtype, &hit);
    }

    if (!ri.flush) { /* the record's shared parts: one writer each */
        if (blockIdx.x % slices == 0) {
            for (int ch = t; ch < s.K; ch += TILE) {
                if (c.hv % (s.HV / s.H) == 0)
                    store_any(s.k_cache.data, k_at(s, c, c.m, ch), k_in(s, c, ch) * c.k_scale, s.k_cache.dtype, &hit);
                if (s.family == KDA)
                    ((float *)s.g_cache.data)[g_at(s, c, c.m, ch)] = gate_in(s, c, ch);
            }
            if (s.family != KDA && t == 0)
                ((float *)s.g_cache.data)[g_at(s, c, c.m, 0)] = sh.gate;
        }
        raise_fault(s, hit, RSSM_FAULTBIT_RING);
        return;
    }

    /* Fold. */
    const float own = s.family == MAMBA2 ? sh.gate : 1.0f;
    bool state_hit = false;
    for (int k0 = 0; k0 < s.K; k0 += TILE) {
        __syncthreads();
        fill_tile(s, c, &sh, k0, t);
        __syncthreads();
        for (int n = lane; n < TILE && k0 + n < s.K; n += 32) {
            const float k = round_to(sh.x[1][n], s.k_cache.dtype, &hit) * own;
            for (int i = 0; i < WROWS && v0 + i < s.V; ++i) {
                const int64_t at = state_at + (int64_t)(v0 + i) * s.K + k0 + n;
                float x = load_any(s.state.data, at, s.state.dtype) * sh.e[n];
                for (int j = 0; j < c.m; ++j)
                    x += load_any(s.d_cache.data, d_at(s, c, j, v0 + i), s.d_cache.dtype) * sh.w[j][n];
                x += sh.d[w * WROWS + i] * k;
                store_any(s.state.data, at, x, s.state.dtype, &state_hit);
            }
        }
    }
    raise_fault(s, hit, RSSM_FAULTBIT_RING);
    raise_fault(s, state_hit, RSSM_FAULTBIT_STATE);
}
