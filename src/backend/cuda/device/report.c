/* report.c - what the device tells of itself (core/backend.h): memory by what it is for, and how often a longer way
 * than usual was taken. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/value.h"

#include <string.h>

void cuda_memory(const struct device *d, struct device_memory *out) {
    size_t free_bytes = 0, total = 0;
    if ((!d->card && cudaSetDevice(d->index) != cudaSuccess) || memory_ask(d, &free_bytes, &total) != cudaSuccess) {
        cudaGetLastError();
        total = 0; // not known
    }
    *out = (struct device_memory){.total = (int64_t)total, .taken = total ? (int64_t)(total - free_bytes) : 0};
}

/* What lists of experts count on the device (moe/moe_stream.h). */
static void experts_seen(const struct executable *exe, unsigned long long seen[2]) {
    bool has_experts = false;
    for (int i = 0; i < exe->program->n_ops; i++)
        has_experts |= exe->program->ops[i].code == OP_MOE_FFN;
    seen[0] = seen[1] = 0;
    if (!has_experts || cudaSetDevice(exe->loaded->device->index) != cudaSuccess ||
        cudaMemcpy(seen, exe->expert_list, 2 * sizeof *seen, cudaMemcpyDeviceToHost) != cudaSuccess)
        cudaGetLastError();
}

int cuda_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    const struct loaded *loaded = exe->loaded;
    const volatile struct dcounts *c = loaded->counts;
    int64_t screen = loaded->filter.head ? loaded->filter.n_bytes : 0,
            near = loaded->l2_copy.at ? loaded->l2_copy.n_bytes : 0;
    unsigned long long seen[2];
    experts_seen(exe, seen);
    const struct device_report all[] = {
        {"weights_bytes", "weights", "bytes", NULL, loaded->weight_bytes - screen - near},
        {"head_screen_bytes", "the head in 8 bits, as a screen", "bytes", NULL, screen},
        {"near_copies_bytes", "weights once more, by sides of the L2", "bytes", NULL, near},
        {"step_bytes", "a step: values, scratch, results", "bytes", NULL, exe->step_bytes + WORKSPACE_BYTES},
        {"screened_steps_total",
         "Steps of greedy rows alone, masked ones too, which may leave most of the head unread.", "steps", NULL,
         loaded->n_filtered},
        {"screened_steps_left_total", "Of those, steps that had to read all of the head as well.", "steps", NULL,
         (int64_t)c->left},
        {"screened_steps_paused_total", "Of those, steps that read all of the head at once, as many were left.",
         "steps", NULL, (int64_t)c->paused},
        {"rescaled_rows_total", "Rows of layers whose foreseen FP8 scale did not fit, quantised anew.", "rows", NULL,
         (int64_t)c->rows_outside},
        {"watched_steps_total", "Steps in which what products read in float16 was looked at.", "steps", NULL,
         loaded->n_watched},
        {"cut_rows_total",
         "Of what they read, rows with values beyond 65504, which float16 cut to that: --dtype bfloat16 has the range.",
         "rows",
         "float16 cut values beyond 65504 in what products read, where it was looked at: answers may not be the "
         "checkpoint's; --dtype "
         "bfloat16 has the range",
         (int64_t)c->rows_cut},
        {"host_list_steps_total",
         "Steps that read penalties and biases from the host's memory, as the device's is full.", "steps", NULL,
         loaded->n_lists_left},
        {"expert_layers_total", "Layers of experts, of steps that decode.", "layers", NULL, (int64_t)seen[0]},
        {"experts_read_total", "Of those layers, experts that a token was sent to, whose weights were read.", "experts",
         NULL, (int64_t)seen[1]},
    };
    _Static_assert(ARRAY_LEN(all) <= MAX_DEVICE_REPORTS, "there is room for all");
    memcpy(out, all, sizeof all);
    return (int)ARRAY_LEN(all);
}
