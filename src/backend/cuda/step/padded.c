/* padded.c - the numbers of rows that steps are padded to: what products are planned for, and graphs captured.
 *
 *     1 2 4 8 | 16 24 32 | 48 64 .. 128 | 160 192 .. 256 | 320 .. 512 | 576 .. 1024 | 1152 .. 2048 | ...
 *
 * Up to 512, where a step may be a graph, no step computes more than a quarter of its rows for nothing once there are
 * 16 of them; beyond, an eighth. */
#include "backend/cuda/step/padded.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

enum { N_FIRST = 7, N_MIDDLE = 14 };
static const int first[N_FIRST] = {1, 2, 4, 8, 16, 24, 32};
static const int middle[N_MIDDLE] = {48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512};

int padded_rows_at(int i) {
    if (i < N_FIRST)
        return first[i];
    if (i < N_FIRST + N_MIDDLE)
        return middle[i - N_FIRST];
    int beyond = i - N_FIRST - N_MIDDLE, eighth = 64 << beyond / 8;
    return (9 + beyond % 8) * eighth;
}

int padded_index(int n) {
    int i = 0;
    if (n > 512) { // 8 numbers to a power of two
        int log2 = 31 - __builtin_clz((unsigned)(n - 1)), eighth = 1 << (log2 - 3);
        return N_FIRST + N_MIDDLE + (log2 - 9) * 8 + (n - 1 - (1 << log2)) / eighth;
    }
    while (padded_rows_at(i) < n)
        i++;
    return i;
}

int padded_rows(int n) { return padded_rows_at(padded_index(n)); }
