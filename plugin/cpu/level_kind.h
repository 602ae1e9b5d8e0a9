/* The functions of one level that read or write one element type. level_template.h includes this three times, with
 * KIND = f32, bf16, fp16 and ELEMENT = float or uint16_t. No include guard. */

#define FN(name) JOIN(name, KIND)
#define LOAD     JOIN(vf_load, KIND)
#define STORE    JOIN(vf_store, KIND)

/* The n < LANES last elements; the other lanes are 0. */
static inline vf FN(load_part)(const ELEMENT *src, int64_t n)
{
    ELEMENT whole[LANES] = {0};
    memcpy(whole, src, (size_t)n * sizeof(ELEMENT));
    return LOAD(whole);
}

static inline void FN(store_part)(ELEMENT *dst, vf a, int64_t n, vsat *saturated)
{
    ELEMENT whole[LANES];
    STORE(whole, a, saturated);
    memcpy(dst, whole, (size_t)n * sizeof(ELEMENT));
}

/* Asks for what lies PREFETCH bytes behind a row of n elements. */
static inline void FN(prefetch_row)(const ELEMENT *row, int64_t n)
{
    const char *ahead = (const char *)row + PREFETCH;
    for (int64_t byte = 0; byte < n * (int64_t)sizeof(ELEMENT); byte += PREFETCH_STEP)
        PREFETCH_LINE(ahead + byte);
}

static void FN(load)(float *dst, const void *src, int64_t n)
{
    const ELEMENT *s = src;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(dst + i, LOAD(s + i));
    if (i < n)
        put_part(dst + i, FN(load_part)(s + i, n - i), n - i);
}

static uint32_t FN(store)(void *dst, const float *src, int64_t n)
{
    ELEMENT *d = dst;
    vsat saturated = vsat_none();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        STORE(d + i, vf_load_f32(src + i), &saturated);
    if (i < n)
        FN(store_part)(d + i, load_part_f32(src + i, n - i), n - i, &saturated);
    return vsat_any(saturated);
}

/* One row against two vectors, four accumulators each. */
static inline void FN(dot2_row)(float *y, float *u, const ELEMENT *row, int64_t n, const float *x, const float *z)
{
    vf y0 = vf_set1(0), y1 = y0, y2 = y0, y3 = y0, u0 = y0, u1 = y0, u2 = y0, u3 = y0;
    int64_t i = 0;
    FN(prefetch_row)(row, n);
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        vf s0 = LOAD(row + i), s1 = LOAD(row + i + LANES), s2 = LOAD(row + i + 2 * LANES),
           s3 = LOAD(row + i + 3 * LANES);
        y0 = vf_fma(s0, vf_load_f32(x + i), y0);
        u0 = vf_fma(s0, vf_load_f32(z + i), u0);
        y1 = vf_fma(s1, vf_load_f32(x + i + LANES), y1);
        u1 = vf_fma(s1, vf_load_f32(z + i + LANES), u1);
        y2 = vf_fma(s2, vf_load_f32(x + i + 2 * LANES), y2);
        u2 = vf_fma(s2, vf_load_f32(z + i + 2 * LANES), u2);
        y3 = vf_fma(s3, vf_load_f32(x + i + 3 * LANES), y3);
        u3 = vf_fma(s3, vf_load_f32(z + i + 3 * LANES), u3);
    }
    for (; i + LANES <= n; i += LANES) {
        vf s = LOAD(row + i);
        y0 = vf_fma(s, vf_load_f32(x + i), y0);
        u0 = vf_fma(s, vf_load_f32(z + i), u0);
    }
    if (i < n) {
        vf s = FN(load_part)(row + i, n - i);
        y1 = vf_fma(s, load_part_f32(x + i, n - i), y1);
        u1 = vf_fma(s, load_part_f32(z + i, n - i), u1);
    }
    *y += vf_sum(vf_add(vf_add(y0, y1), vf_add(y2, y3)));
    *u += vf_sum(vf_add(vf_add(u0, u1), vf_add(u2, u3)));
}

static void FN(dot2)(float *y, float *u, const void *matrix, int64_t rows, int64_t n, const float *x, const float *z)
{
    const ELEMENT *row = matrix;
    for (int64_t r = 0; r < rows; r++, row += n)
        FN(dot2_row)(y + r, u + r, row, n, x, z);
}

static inline void FN(dot1_row)(float *y, const ELEMENT *row, int64_t n, const float *x)
{
    vf y0 = vf_set1(0), y1 = y0, y2 = y0, y3 = y0;
    int64_t i = 0;
    FN(prefetch_row)(row, n);
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        y0 = vf_fma(LOAD(row + i), vf_load_f32(x + i), y0);
        y1 = vf_fma(LOAD(row + i + LANES), vf_load_f32(x + i + LANES), y1);
        y2 = vf_fma(LOAD(row + i + 2 * LANES), vf_load_f32(x + i + 2 * LANES), y2);
        y3 = vf_fma(LOAD(row + i + 3 * LANES), vf_load_f32(x + i + 3 * LANES), y3);
    }
    for (; i + LANES <= n; i += LANES)
        y0 = vf_fma(LOAD(row + i), vf_load_f32(x + i), y0);
    if (i < n)
        y1 = vf_fma(FN(load_part)(row + i, n - i), load_part_f32(x + i, n - i), y1);
    *y += vf_sum(vf_add(vf_add(y0, y1), vf_add(y2, y3)));
}

static void FN(dot1)(float *y, const void *matrix, int64_t rows, int64_t n, const float *x)
{
    const ELEMENT *row = matrix;
    for (int64_t r = 0; r < rows; r++, row += n)
        FN(dot1_row)(y + r, row, n, x);
}

static void FN(record)(float *w, float dots[2], const void *k, const float *g, float *suffix, const float *x,
                       const float *z, int64_t n, const void *ahead)
{
    const ELEMENT *key = k;
    vf dx = vf_set1(0), dz = dx;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        PREFETCH_LINE((const char *)ahead + i * RECORD_AHEAD);
        vf s = vf_load_f32(suffix + i);
        vf decayed = vf_mul(LOAD(key + i), exp_of(s));
        dx = vf_fma(decayed, vf_load_f32(x + i), dx);
        dz = vf_fma(decayed, vf_load_f32(z + i), dz);
        put(w + i, decayed);
        put(suffix + i, vf_add(s, vf_load_f32(g + i)));
    }
    if (i < n) {
        int64_t rest = n - i;
        vf s = load_part_f32(suffix + i, rest);
        vf decayed = vf_mul(FN(load_part)(key + i, rest), exp_of(s));
        dx = vf_fma(decayed, load_part_f32(x + i, rest), dx);
        dz = vf_fma(decayed, load_part_f32(z + i, rest), dz);
        put_part(w + i, decayed, rest);
        put_part(suffix + i, vf_add(s, load_part_f32(g + i, rest)), rest);
    }
    dots[0] = vf_sum(dx);
    dots[1] = vf_sum(dz);
}

static void FN(combine2)(float *y, float *u, const void *d, int64_t rows, int64_t n, const float *c, const float *e)
{
    const ELEMENT *first = d;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf y0 = vf_load_f32(y + i), y1 = vf_load_f32(y + i + LANES);
        vf u0 = vf_load_f32(u + i), u1 = vf_load_f32(u + i + LANES);
        for (int64_t j = 0; j < rows; j++) {
            vf d0 = LOAD(first + j * n + i), d1 = LOAD(first + j * n + i + LANES);
            vf cj = vf_set1(c[j]), ej = vf_set1(e[j]);
            y0 = vf_fma(d0, cj, y0);
            y1 = vf_fma(d1, cj, y1);
            u0 = vf_fma(d0, ej, u0);
            u1 = vf_fma(d1, ej, u1);
        }
        put(y + i, y0);
        put(y + i + LANES, y1);
        put(u + i, u0);
        put(u + i + LANES, u1);
    }
    for (; i < n; i += LANES) {
        int64_t rest = n - i < LANES ? n - i : LANES;
        vf y0 = load_part_f32(y + i, rest), u0 = load_part_f32(u + i, rest);
        for (int64_t j = 0; j < rows; j++) {
            vf d0 = FN(load_part)(first + j * n + i, rest);
            y0 = vf_fma(d0, vf_set1(c[j]), y0);
            u0 = vf_fma(d0, vf_set1(e[j]), u0);
        }
        put_part(y + i, y0, rest);
        put_part(u + i, u0, rest);
    }
}

static void FN(combine1)(float *y, const void *d, int64_t rows, int64_t n, const float *c)
{
    const ELEMENT *first = d;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf y0 = vf_load_f32(y + i), y1 = vf_load_f32(y + i + LANES);
        for (int64_t j = 0; j < rows; j++) {
            vf cj = vf_set1(c[j]);
            y0 = vf_fma(LOAD(first + j * n + i), cj, y0);
            y1 = vf_fma(LOAD(first + j * n + i + LANES), cj, y1);
        }
        put(y + i, y0);
        put(y + i + LANES, y1);
    }
    for (; i < n; i += LANES) {
        int64_t rest = n - i < LANES ? n - i : LANES;
        vf y0 = load_part_f32(y + i, rest);
        for (int64_t j = 0; j < rows; j++)
            y0 = vf_fma(FN(load_part)(first + j * n + i, rest), vf_set1(c[j]), y0);
        put_part(y + i, y0, rest);
    }
}

/* Two state rows by four vectors at element i: the keys are read once for both. d is at the first row's column. */
static inline void FN(fold_tile)(ELEMENT *s, ELEMENT *t, int64_t i, const rssm_fold *f, const float *d, vsat *saturated)
{
    const float *decay = f->decay + i, *k = f->k + i;
    vf c0 = vf_load_f32(decay), c1 = vf_load_f32(decay + LANES), c2 = vf_load_f32(decay + 2 * LANES),
       c3 = vf_load_f32(decay + 3 * LANES);
    vf s0 = vf_mul(LOAD(s), c0), s1 = vf_mul(LOAD(s + LANES), c1), s2 = vf_mul(LOAD(s + 2 * LANES), c2),
       s3 = vf_mul(LOAD(s + 3 * LANES), c3);
    vf t0 = vf_mul(LOAD(t), c0), t1 = vf_mul(LOAD(t + LANES), c1), t2 = vf_mul(LOAD(t + 2 * LANES), c2),
       t3 = vf_mul(LOAD(t + 3 * LANES), c3);
    for (int64_t j = 0; j < f->terms; j++, k += f->k_row, d += f->d_row) {
        vf ds = vf_set1(d[0]), dt = vf_set1(d[1]);
        vf k0 = vf_load_f32(k), k1 = vf_load_f32(k + LANES), k2 = vf_load_f32(k + 2 * LANES),
           k3 = vf_load_f32(k + 3 * LANES);
        s0 = vf_fma(ds, k0, s0);
        t0 = vf_fma(dt, k0, t0);
        s1 = vf_fma(ds, k1, s1);
        t1 = vf_fma(dt, k1, t1);
        s2 = vf_fma(ds, k2, s2);
        t2 = vf_fma(dt, k2, t2);
        s3 = vf_fma(ds, k3, s3);
        t3 = vf_fma(dt, k3, t3);
    }
    STORE(s, s0, saturated);
    STORE(s + LANES, s1, saturated);
    STORE(s + 2 * LANES, s2, saturated);
    STORE(s + 3 * LANES, s3, saturated);
    STORE(t, t0, saturated);
    STORE(t + LANES, t1, saturated);
    STORE(t + 2 * LANES, t2, saturated);
    STORE(t + 3 * LANES, t3, saturated);
}

/* Elements i .. n - 1 of one row. */
static inline void FN(fold_rest)(ELEMENT *row, int64_t i, int64_t n, const rssm_fold *f, const float *d,
                                 vsat *saturated)
{
    for (; i + LANES <= n; i += LANES) {
        vf s = vf_mul(LOAD(row + i), vf_load_f32(f->decay + i));
        for (int64_t j = 0; j < f->terms; j++)
            s = vf_fma(vf_set1(d[j * f->d_row]), vf_load_f32(f->k + j * f->k_row + i), s);
        STORE(row + i, s, saturated);
    }
    if (i < n) {
        vf s = vf_mul(FN(load_part)(row + i, n - i), load_part_f32(f->decay + i, n - i));
        for (int64_t j = 0; j < f->terms; j++)
            s = vf_fma(vf_set1(d[j * f->d_row]), load_part_f32(f->k + j * f->k_row + i, n - i), s);
        FN(store_part)(row + i, s, n - i, saturated);
    }
}

/* The fold of the read-and-write step: one term. Decay and key of four vectors stay in registers for all rows. */
static inline void FN(fold_one)(ELEMENT *state, int64_t rows, int64_t n, int64_t i, const rssm_fold *f, vsat *saturated)
{
    const float *decay = f->decay + i, *k = f->k + i;
    vf c0 = vf_load_f32(decay), c1 = vf_load_f32(decay + LANES), c2 = vf_load_f32(decay + 2 * LANES),
       c3 = vf_load_f32(decay + 3 * LANES);
    vf k0 = vf_load_f32(k), k1 = vf_load_f32(k + LANES), k2 = vf_load_f32(k + 2 * LANES),
       k3 = vf_load_f32(k + 3 * LANES);
    ELEMENT *s = state + i;
    for (int64_t r = 0; r < rows; r++, s += n) {
        vf d = vf_set1(f->d[r]);
        STORE(s, vf_fma(d, k0, vf_mul(LOAD(s), c0)), saturated);
        STORE(s + LANES, vf_fma(d, k1, vf_mul(LOAD(s + LANES), c1)), saturated);
        STORE(s + 2 * LANES, vf_fma(d, k2, vf_mul(LOAD(s + 2 * LANES), c2)), saturated);
        STORE(s + 3 * LANES, vf_fma(d, k3, vf_mul(LOAD(s + 3 * LANES), c3)), saturated);
    }
}

/* A fold of many terms computes longer than its rows take to arrive: meanwhile the next block of rows can. */
static inline void FN(prefetch_block)(const ELEMENT *row, int64_t n)
{
    for (int64_t byte = 0; byte < n * (int64_t)sizeof(ELEMENT); byte += 64)
        PREFETCH_LINE((const char *)row + byte);
}

static uint32_t FN(fold)(void *state, int64_t rows, int64_t n, const rssm_fold *f)
{
    ELEMENT *row = state;
    vsat saturated = vsat_none();
    int64_t r = 0, strips = n / (4 * LANES) * (4 * LANES);
    if (f->terms == 1)
        for (int64_t i = 0; i < strips; i += 4 * LANES)
            FN(fold_one)(row, rows, n, i, f, &saturated);
    for (; f->terms != 1 && r + 2 <= rows; r += 2, row += 2 * n) {
        FN(prefetch_block)(row + rows * n, 2 * n);
        for (int64_t i = 0; i < strips; i += 4 * LANES)
            FN(fold_tile)(row + i, row + n + i, i, f, f->d + r, &saturated);
        FN(fold_rest)(row, strips, n, f, f->d + r, &saturated);
        FN(fold_rest)(row + n, strips, n, f, f->d + r + 1, &saturated);
    }
    for (; r < rows; r++, row += n)
        FN(fold_rest)(row, f->terms == 1 ? strips : 0, n, f, f->d + r, &saturated);
    return vsat_any(saturated);
}

#undef FN
#undef LOAD
#undef STORE
