/* Verify for any sizes and dtypes (K, V up to 4096, L up to 64, windows up to 16), element-aligned everything.
 *
 * One block per (row, value head, 32 rows of the state). It walks the channels in tiles of 64. In each tile the committed
 * records' keys are decayed up to the window, the checkpoint is read once (and, if the row flushes, the records fold into it
 * and it is written back, rounded: that is what the window then reads), and then the tokens pass one by one: what the
 * state and every earlier item - record or draft - contribute to S q_t and S k_t are two dot products each. What is left
 * per state row is the forward substitution over the window,
 *     d_t = beta_t (v_t - S k_t - sum_{i<t} score_i,t d_i),   out_t likewise,
 * with d_i and k_i rounded to the ring's dtype for every token but their own. Written to be read beside maths.md; the
 * tuned kernels (verify_tile.cuh) do the same sums, faster.
 */
#include "verify.cuh"
#include "verify_variants.h"

#define ALL     0xffffffffu
#define THREADS RSSM_VERIFY_GENERAL_THREADS
#define ROWS    RSSM_VERIFY_GENERAL_ROWS
#define WARPS   (THREADS / 32)
#define WROWS   (ROWS / WARPS) /* state rows per warp, readout */
#define TILE    64             /* channels at once */
#define MAXL    64
#define MAXT    RSSM_VERIFY_MAX_T
#define ITEMS   (MAXL + MAXT) /* committed records, then drafts */

struct verify_shared {
    float w[ITEMS][TILE];        /* keys of the items, decayed up to the token where gates are per channel */
    float state[ROWS][TILE + 1]; /* the checkpoint's tile, after the fold */
    float x[2][TILE];            /* q and k of the token, normalised and scaled */
    float e[TILE];               /* decay of the checkpoint up to the token, where gates are per channel */
    float score[ITEMS][MAXT][2]; /* w_j . x_t */
    float sum[ROWS][MAXT][2];    /* S q_t, S k_t */
    float d[MAXT][ROWS];         /* the drafts' d, rounded */
    float gate[ITEMS];           /* one number per head: g or dt of each item */
    float q_scale[MAXT], k_scale[MAXT], qk[MAXT], beta[MAXT];
};
static_assert(sizeof(verify_shared) <= 48 << 10, "static shared memory");

/* One (row, head) as a thread sees it. */
struct verify_ctx {
    int64_t slot, token; /* first token */
    int h, hv, base;
    int m, T;         /* committed records, tokens */
    int first;        /* first item that the window reads: 0, or m after a fold */
    int v0;           /* the block's first state row */
    float rate;       /* exp(A_log) */
    float decay_rate; /* A of Mamba-2, 1 otherwise: gate times this is the log decay */
};

DEVICE float warp_sum(float x)
{
    for (int o = 16; o; o /= 2)
        x += __shfl_xor_sync(ALL, x, o);
    return x;
}

DEVICE int64_t ring_row(const rssm_step &s, const verify_ctx &c, int j)
{
    const int p = c.base + j;
    return p >= s.R ? p - s.R : p;
}

DEVICE int64_t k_at(const rssm_step &s, const verify_ctx &c, int j, int ch)
{
    return c.slot * s.k_cache.slot + ((int64_t)c.h * s.R + ring_row(s, c, j)) * s.K + ch;
}

DEVICE int64_t d_at(const rssm_step &s, const verify_ctx &c, int j, int v)
{
    return c.slot * s.d_cache.slot + ((int64_t)c.hv * s.R + ring_row(s, c, j)) * s.V + v;
}

DEVICE int64_t g_at(const rssm_step &s, const verify_ctx &c, int j, int ch)
{
    const int64_t width = s.family == KDA ? s.K : 1;
    return c.slot * s.g_cache.slot + ((int64_t)c.hv * s.R + ring_row(s, c, j)) * width + ch;
}

DEVICE float record_d(const rssm_step &s, const verify_ctx &c, int j, int v)
{
    return load_any(s.d_cache.data, d_at(s, c, j, v), s.d_cache.dtype);
}

DEVICE float bias_at(const rssm_step &s, int64_t i)
{
    return s.dt_bias.data ? load_any(s.dt_bias.data, i, s.dt_bias.dtype) : 0.0f;
}

DEVICE float token_q(const rssm_step &s, const verify_ctx &c, int t, int ch)
{
    return load_any(s.q.data, (c.token + t) * s.q.row + (int64_t)c.h * s.K + ch, s.q.dtype);
}

DEVICE float token_k(const rssm_step &s, const verify_ctx &c, int t, int ch)
{
    return load_any(s.k.data, (c.token + t) * s.k.row + (int64_t)c.h * s.K + ch, s.k.dtype);
}

/* KDA's gate of one channel. */
DEVICE float token_gate(const rssm_step &s, const verify_ctx &c, int t, int ch)
{
    const int64_t i = (int64_t)c.hv * s.K + ch;
    return log_gate(s, load_any(s.a.data, (c.token + t) * s.a.row + i, s.a.dtype) + bias_at(s, i), c.rate);
}

/* Norms and scalars of the tokens, a warp per token; the gates of the records, where they are scalars. */
DEVICE void read_scalars(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int thread)
{
    const int w = thread >> 5, lane = thread & 31;
    const bool norm = s.family != MAMBA2 && (s.flags & RSSM_STEP_QK_NORM);
    for (int t = w; t < c.T; t += WARPS) {
        float qq = 0.0f, kk = 0.0f, qk = 0.0f;
        for (int ch = lane; ch < s.K; ch += 32) {
            const float q = token_q(s, c, t, ch), k = token_k(s, c, t, ch);
            qq += q * q;
            kk += k * k;
            qk += q * k;
        }
        qq = warp_sum(qq);
        kk = warp_sum(kk);
        qk = warp_sum(qk);
        if (lane == 0) {
            const int64_t token = c.token + t;
            const float q_scale = s.family == MAMBA2 ? 1.0f : norm ? s.scale / sqrtf(qq + s.norm_eps) : s.scale;
            const float k_scale = norm ? 1.0f / sqrtf(kk + s.norm_eps) : 1.0f;
            sh->q_scale[t] = q_scale;
            sh->k_scale[t] = k_scale;
            sh->qk[t] = qk * q_scale * k_scale;
            if (s.family != MAMBA2)
                sh->beta[t] = sigmoid(load_any(s.b.data, token * s.b.row + c.hv, s.b.dtype)) * s.beta_scale;
            if (s.family != KDA) {
                const float x = load_any(s.a.data, token * s.a.row + c.hv, s.a.dtype) + bias_at(s, c.hv);
                sh->gate[c.m + t] = s.family == GDN ? log_gate(s, x, c.rate) : time_step(s, x);
            }
        }
    }
    if (s.family != KDA && thread < c.m)
        sh->gate[thread] = ((const float *)s.g_cache.data)[g_at(s, c, thread, 0)];
}

/* Channel k0 + i of the committed keys, newest first. Decayed up to the window where gates are per channel, or for a
 * fold, which needs w and e as they stand. */
DEVICE void fill_records(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int k0, int i, bool fold)
{
    const int ch = k0 + i;
    float suffix = 0.0f; /* log decay after record j */
    for (int j = c.m - 1; j >= 0; --j) {
        float k = ch < s.K ? load_any(s.k_cache.data, k_at(s, c, j, ch), s.k_cache.dtype) : 0.0f;
        if (s.family == KDA) {
            k *= expf(suffix);
            suffix += ch < s.K ? ((const float *)s.g_cache.data)[g_at(s, c, j, ch)] : 0.0f;
        } else if (fold) {
            k *= expf(suffix) * (s.family == MAMBA2 ? sh->gate[j] : 1.0f);
            suffix += c.decay_rate * sh->gate[j];
        }
        sh->w[j][i] = k;
    }
    sh->e[i] = expf(suffix);
}

/* The checkpoint's tile; channels and rows beyond the state are zero. */
DEVICE void fill_state(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int k0, int thread)
{
    const int64_t at = c.slot * s.state.slot + ((int64_t)c.hv * s.V + c.v0) * s.K + k0;
    for (int i = thread; i < ROWS * TILE; i += THREADS) {
        const int v = i / TILE, n = i % TILE;
        const bool here = c.v0 + v < s.V && k0 + n < s.K;
        sh->state[v][n] = here ? load_any(s.state.data, at + (int64_t)v * s.K + n, s.state.dtype) : 0.0f;
    }
}

/* Folds the committed records into the tile and writes it back; the window reads the rounded tile. */
DEVICE void fold_tile(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int k0, int thread, bool *hit)
{
    const int64_t at = c.slot * s.state.slot + ((int64_t)c.hv * s.V + c.v0) * s.K + k0;
    for (int i = thread; i < ROWS * TILE; i += THREADS) {
        const int v = i / TILE, n = i % TILE;
        if (c.v0 + v >= s.V || k0 + n >= s.K)
            continue;
        float x = sh->state[v][n] * sh->e[n];
        for (int j = 0; j < c.m; ++j)
            x += record_d(s, c, j, c.v0 + v) * sh->w[j][n];
        store_any(s.state.data, at + (int64_t)v * s.K + n, x, s.state.dtype, hit);
        sh->state[v][n] = round_to(x, s.state.dtype, hit);
    }
}

/* Channel k0 + i of token t: its q and k, and everything earlier decayed by its gate. */
DEVICE void fill_token(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int t, int k0, int i)
{
    const int ch = k0 + i;
    const bool here = ch < s.K;
    sh->x[0][i] = here ? token_q(s, c, t, ch) * sh->q_scale[t] : 0.0f;
    sh->x[1][i] = here ? token_k(s, c, t, ch) * sh->k_scale[t] : 0.0f;
    if (s.family == KDA && here) {
        const float alpha = expf(token_gate(s, c, t, ch));
        for (int j = c.first; j < c.m + t; ++j)
            sh->w[j][i] *= alpha;
        sh->e[i] *= alpha;
    }
}

/* The tile's share of token t's scores and readouts. */
DEVICE void add_products(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int t, int w, int lane)
{
    const int readouts = s.family == MAMBA2 ? 1 : 2;
    for (int q = 0; q < readouts; ++q) {
        const float x0 = sh->x[q][lane], x1 = sh->x[q][lane + 32];
        for (int j = c.first + w; j < c.m + t; j += WARPS) {
            const float x = warp_sum(sh->w[j][lane] * x0 + sh->w[j][lane + 32] * x1);
            if (lane == 0)
                sh->score[j][t][q] += x;
        }
        const float y0 = s.family == KDA ? x0 * sh->e[lane] : x0, y1 = s.family == KDA ? x1 * sh->e[lane + 32] : x1;
        for (int v = w * WROWS; v < (w + 1) * WROWS; ++v) {
            const float x = warp_sum(sh->state[v][lane] * y0 + sh->state[v][lane + 32] * y1);
            if (lane == 0)
                sh->sum[v][t][q] += x;
        }
    }
}

/* All scores and the checkpoint's part of all readouts. */
DEVICE void walk_channels(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int thread, bool flush)
{
    const int w = thread >> 5, lane = thread & 31;
    bool state_hit = false, ring_hit = false;
    for (int k0 = 0; k0 < s.K; k0 += TILE) {
        if (thread < TILE)
            fill_records(s, c, sh, k0, thread, flush);
        fill_state(s, c, sh, k0, thread);
        __syncthreads();
        if (flush) {
            fold_tile(s, c, sh, k0, thread, &state_hit);
            __syncthreads();
            if (thread < TILE)
                sh->e[thread] = 1.0f;
        }
        for (int t = 0; t < c.T; ++t) {
            if (thread < TILE)
                fill_token(s, c, sh, t, k0, thread);
            __syncthreads();
            add_products(s, c, sh, t, w, lane);
            if (thread < TILE) /* a draft for the tokens after it */
                sh->w[c.m + t][thread] = round_to(sh->x[1][thread], s.k_cache.dtype, &ring_hit);
            __syncthreads();
        }
        __syncthreads();
    }
    raise_fault(s, state_hit, RSSM_FAULTBIT_STATE);
    raise_fault(s, ring_hit, RSSM_FAULTBIT_RING);
}

/* One gate per head: the decays are numbers that multiply the sums. */
DEVICE void apply_decays(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int thread)
{
    for (int i = thread; i < (c.m + c.T) * c.T; i += THREADS) {
        const int j = i / c.T, t = i % c.T;
        if (j < c.first || j >= c.m + t)
            continue;
        float sum = 0.0f;
        for (int n = c.m + t; n > j; --n)
            sum += sh->gate[n];
        const float decay = expf(c.decay_rate * sum) * (s.family == MAMBA2 ? sh->gate[j] : 1.0f);
        sh->score[j][t][0] *= decay;
        sh->score[j][t][1] *= decay;
    }
    for (int i = thread; i < ROWS * c.T; i += THREADS) {
        const int v = i / c.T, t = i % c.T;
        float sum = 0.0f;
        for (int n = c.m + t; n >= c.first; --n)
            sum += sh->gate[n];
        const float decay = expf(c.decay_rate * sum);
        sh->sum[v][t][0] *= decay;
        sh->sum[v][t][1] *= decay;
    }
}

/* The committed records' part of the readouts: lane = state row, warps share the tokens. */
DEVICE void add_records(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int w, int lane)
{
    if (c.v0 + lane >= s.V)
        return;
    for (int t = w; t < c.T; t += WARPS) {
        float q = sh->sum[lane][t][0], k = sh->sum[lane][t][1];
        for (int j = c.first; j < c.m; ++j) {
            const float d = record_d(s, c, j, c.v0 + lane);
            q += sh->score[j][t][0] * d;
            k += sh->score[j][t][1] * d;
        }
        sh->sum[lane][t][0] = q;
        sh->sum[lane][t][1] = k;
    }
}

/* State row v: the window's tokens in their order; outputs and the drafts' d. */
DEVICE void substitute(const rssm_step &s, const verify_ctx &c, verify_shared *sh, int lane)
{
    const int v = c.v0 + lane;
    const int64_t at = (int64_t)c.hv * s.V + v;
    bool out_hit = false, ring_hit = false;
    if (v >= s.V)
        return;
    for (int t = 0; t < c.T; ++t) {
        const int64_t token = c.token + t;
        float q = sh->sum[lane][t][0], k = sh->sum[lane][t][1];
        for (int i = 0; i < t; ++i) {
            q += sh->score[c.m + i][t][0] * sh->d[i][lane];
            k += sh->score[c.m + i][t][1] * sh->d[i][lane];
        }
        const float x = load_any(s.v.data, token * s.v.row + at, s.v.dtype);
        float d = x, out;
        if (s.family == MAMBA2) {
            out = q + sh->gate[c.m + t] * sh->qk[t] * x;
            if (s.D.data)
                out += load_any(s.D.data, c.hv, s.D.dtype) * x;
            if (s.z.data) {
                const float z = load_any(s.z.data, token * s.z.row + at, s.z.dtype);
                out *= z * sigmoid(z);
            }
        } else {
            d = sh->beta[t] * (x - k);
            out = q + d * sh->qk[t];
        }
        store_any(s.out, token * s.out_row + at, out, s.out_dtype, &out_hit);
        store_any(s.d_cache.data, d_at(s, c, c.m + t, v), d, s.d_cache.dtype, &ring_hit);
        sh->d[t][lane] = round_to(d, s.d_cache.dtype, &ring_hit);
    }
    raise_fault(s, out_hit, RSSM_FAULTBIT_OUTPUT);
    raise_fault(s, ring_hit, RSSM_FAULTBIT_RING);
}

/* The drafts' keys (the first sibling's, who share them) and gates, to rows that nobody reads in this launch. */
DEVICE void store_drafts(const rssm_step &s, const verify_ctx &c, const verify_shared *sh, int thread)
{
    bool hit = false;
    for (int t = 0; t < c.T; ++t) {
        for (int ch = thread; ch < s.K; ch += THREADS) {
            if (c.hv % (s.HV / s.H) == 0)
                store_any(s.k_cache.data, k_at(s, c, c.m + t, ch), token_k(s, c, t, ch) * sh->k_scale[t],
                          s.k_cache.dtype, &hit);
            if (s.family == KDA)
                ((float *)s.g_cache.data)[g_at(s, c, c.m + t, ch)] = token_gate(s, c, t, ch);
        }
        if (s.family != KDA && thread == 0)
            ((float *)s.g_cache.data)[g_at(s, c, c.m + t, 0)] = sh->gate[c.m + t];
    }
    raise_fault(s, hit, RSSM_FAULTBIT_RING);
}

/* Zeros for the tokens of a padding row. */
DEVICE void zero_outputs(const rssm_step &s, const window_row &r, int hv, int v)
{
    bool hit = false;
    for (int t = 0; t < r.len && v < s.V; ++t)
        store_any(s.out, ((int64_t)r.start + t) * s.out_row + (int64_t)hv * s.V + v, 0.0f, s.out_dtype, &hit);
}

extern "C" __global__ void __launch_bounds__(THREADS) rssm_verify_general(const __grid_constant__ rssm_window a)
{
    __shared__ verify_shared sh;
    wait_for_predecessors();
    const rssm_step &s = a.step;
    const int thread = threadIdx.x, w = thread >> 5, lane = thread & 31;
    const int slices = (s.V + ROWS - 1) / ROWS;
    const int64_t row = (int64_t)blockIdx.z * 65535 + blockIdx.y;
    if (row >= s.B)
        return;
    const window_row r = judge_window(a, load_window(s, row));
    verify_ctx c;
    c.hv = blockIdx.x / slices;
    c.h = c.hv / (s.HV / s.H);
    c.v0 = blockIdx.x % slices * ROWS;
    raise_fault(s, r.fault && thread == 0 && blockIdx.x == 0, r.fault);
    if (r.slot < 0) {
        if (w == 0)
            zero_outputs(s, r, c.hv, c.v0 + lane);
        return;
    }
    if (r.len == 0 && !r.flush)
        return;
    c.slot = r.slot;
    c.token = r.start;
    c.base = r.base;
    c.m = r.count;
    c.T = r.len;
    c.first = r.flush ? c.m : 0;
    const float alog = s.A_log.data ? load_any(s.A_log.data, c.hv, s.A_log.dtype) : 0.0f;
    c.rate = s.A_log.data ? expf(alog) : 1.0f;
    c.decay_rate = s.family != MAMBA2 ? 1.0f : s.flags & RSSM_STEP_A_IS_DECAY ? alog : -c.rate;

    read_scalars(s, c, &sh, thread);
    for (int i = thread; i < ITEMS * MAXT * 2; i += THREADS)
        (&sh.score[0][0][0])[i] = 0.0f;
    for (int i = thread; i < ROWS * MAXT * 2; i += THREADS)
        (&sh.sum[0][0][0])[i] = 0.0f;
    __syncthreads();
    walk_channels(s, c, &sh, thread, r.flush);
    if (s.family != KDA)
        apply_decays(s, c, &sh, thread);
    __syncthreads();
    add_records(s, c, &sh, w, lane);
    __syncthreads();
    if (w == 0)
        substitute(s, c, &sh, lane);
    if (c.v0 == 0)
        store_drafts(s, c, &sh, thread);
}
