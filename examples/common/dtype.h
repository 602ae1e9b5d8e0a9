/* Element types on the host side: names, sizes, rounding, conversion from and to double. */
#ifndef EXAMPLES_DTYPE_H_
#define EXAMPLES_DTYPE_H_

#include <rssm_base.h>

typedef struct dtype_info {
    int32_t id; /* RSSM_DTYPE_* */
    const char *name;
    int64_t bytes;
    DLDataType dl;
    int mantissa;     /* stored bits of the significand */
    int min_exponent; /* of the smallest normal number  */
    double max;
} dtype_info;

/* RSSM_DTYPE_* to its row, NULL if unknown. */
const dtype_info *dtype_find(int32_t id);
/* "float32", "fp32", "bf16", ... to its row, NULL if unknown. */
const dtype_info *dtype_parse(const char *name);
/* The row of a DLTensor's element type, NULL if it is not one of ours. */
const dtype_info *dtype_of(const DLTensor *tensor);

/* dst[n] <- src[n] widened. */
void dtype_load(const dtype_info *type, const void *src, int64_t n, double *dst);
/* dst[n] <- src[n], nearest even. */
void dtype_store(const dtype_info *type, const float *src, int64_t n, void *dst);

/* The spacing of the type's numbers around x. */
double dtype_ulp(const dtype_info *type, double x);
/* x rounded once, nearest even, saturating. */
double dtype_round(const dtype_info *type, double x);

#endif
