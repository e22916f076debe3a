/* gpu_watch.h - clocks, power and temperature of the GPU while something runs, from NVML, which is opened when it is
 * wanted. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gpu_report {
    int n_samples;           // 0: nothing is known
    int sm_mhz_least;        // ... and of the samples' mean:
    double sm_mhz, watts;    // mean over the samples
    int memory_mhz, celsius; // the last
    double joules;           // taken meanwhile; 0: not known
    /* NVML's reasons for clocks below the highest, of all samples, without "idle" and "as the user set". */
    uint64_t held_back;
};

/* Watches the GPU that CUDA calls device 0, every 50 ms. Returns false, and why is a sentence, where there is no
 * NVML or no GPU. */
struct gpu_watch;
bool gpu_watch_start(struct gpu_watch **out, const char **why);
void gpu_watch_stop(struct gpu_watch *take_watch, struct gpu_report *out); // NULL is fine: a report of nothing
