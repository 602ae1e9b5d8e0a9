/* Tensor cores: a bfloat16 state against fp32 vectors, without losing fp32 accuracy. */
#ifndef RSSM_CUDA_MMA_CUH_
#define RSSM_CUDA_MMA_CUH_

#include "dtype.cuh"

/* d[16 x 8] += a[16 x 16] b[16 x 8], fp32 accumulation. Lane (g, t) = (lane / 4, lane % 4): a0, a1 = rows g, g + 8 of
 * columns 2t, 2t + 1, a2, a3 = the same of columns 2t + 8, 2t + 9; b0, b1 likewise rows of column g; d = columns 2t,
 * 2t + 1 of row g, then of row g + 8. */
DEVICE void mma_bf16(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same of half the depth: a0, a1 = rows g, g + 8 of columns 2t, 2t + 1; b0 = rows 2t, 2t + 1 of column g. */
DEVICE void mma_bf16_short(float *d, uint32_t a0, uint32_t a1, uint32_t b0)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

/* Four 8 x 8 matrices of bfloat16, row i of matrix m where lane 8m + i says, transposed: b[m] = rows 2t, 2t + 1 of column
 * g, so that two matrices one above the other are mma_bf16's b0, b1. Rows are 16 bytes in shared memory. */
DEVICE void load_transposed(uint32_t *b, const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

#endif
