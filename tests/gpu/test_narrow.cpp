/* How a fold's results become 16-bit numbers, compiled for the host: without a branch and repaired in the end, beside number by
 * number. Both must store the same bits and raise the same flag. */
#include "gpu/on_host.h"

#include <cstdio>

#include "cuda/dtype.cuh"

enum { ROUNDS = 200000 };

static uint64_t seed = 7;

static uint32_t draw()
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 32);
}

/* Mostly small, now and then next to where a number would become infinite, or none at all. */
static float number(float limit)
{
    const float edges[] = {
        INFINITY, -INFINITY, NAN, limit, -limit, std::nextafter(limit, 0.0f), -std::nextafter(limit, 0.0f)};
    if (draw() % 16 == 0)
        return edges[draw() % 7];
    return (float)(int32_t)draw() * 1e-7f;
}

/* limit: the least number that rounds to infinity. Returns in how many rounds the two differ. */
template <class ST> static int differ(ST st, float limit, int *saturated)
{
    int bad = 0;
    for (int round = 0; round < ROUNDS; round++) {
        float x[8], y[8];
        for (int i = 0; i < 8; i++)
            x[i] = y[i] = number(limit);
        bool hit = false;
        const uint4 want = narrow_chunk(x, &hit, st);
        uint32_t top = 0;
        uint4 got = narrow_quickly(y, &top, st);
        const bool infinite = had_infinite(top, st);
        if (infinite)
            got = without_infinite(got, st);
        bad += infinite != hit || memcmp(&got, &want, sizeof want) != 0;
        *saturated += hit;
    }
    return bad;
}

int main()
{
    int bf16 = 0, f16 = 0;
    const int bad = differ(bf16_state(), __uint_as_float(0x7f7f8000u), &bf16) + differ(f16_state(), 65520.0f, &f16);
    printf("%d of %d chunks differ; %d and %d had something to saturate\n", bad, 2 * ROUNDS, bf16, f16);
    return bad != 0 || bf16 < ROUNDS / 10 || f16 < ROUNDS / 10 || bf16 == ROUNDS || f16 == ROUNDS;
}
