/* Two more tensor core operations, for the verify kernels (mma.cuh has the others). */
#ifndef RSSM_CUDA_VERIFY_MMA_CUH_
#define RSSM_CUDA_VERIFY_MMA_CUH_

#include "dtype.cuh"

/* d[16 x 8] += a[16 x 8] b[8 x 8] in tf32: of each float its first 19 bits count. Lane (g, t) = (lane / 4, lane % 4):
 * a0, a1 = rows g, g + 8 of column t, a2, a3 = the same of column t + 4; b0, b1 = rows t, t + 4 of column g; d as in mma_bf16. */
DEVICE void mma_tf32(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of bfloat16, row i of matrix m where lane 8m + i says: b[m] = columns 2t, 2t + 1 of row g. */
DEVICE void load_matrices(uint32_t *b, const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

#endif
