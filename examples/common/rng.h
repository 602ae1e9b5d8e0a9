/* Seeded random numbers, the same on every machine. */
#ifndef EXAMPLES_RNG_H_
#define EXAMPLES_RNG_H_

#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An own stream for each (seed, a, b). */
static inline rng rng_stream(uint64_t seed, uint64_t a, uint64_t b)
{
    rng r = {seed};
    r.state = rng_next(&r) ^ a * 0xd1342543de82ef95u;
    r.state = rng_next(&r) ^ b * 0xaf251af3b0f025b5u;
    return r;
}

/* [0, 1) */
static inline float rng_uniform(rng *r)
{
    return (float)(rng_next(r) >> 40) * 0x1p-24f;
}

/* Mean 0, variance 1: the sum of four uniforms, within 3.47 either way. One draw, no logarithm. */
static inline float rng_normal(rng *r)
{
    uint64_t z = rng_next(r);
    uint64_t sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    return ((float)sum - 2.0f * 65535.0f) * (1.7320508f / 65535.0f);
}

#endif
