/* gpu_watch.c - see gpu_watch.h. The few declarations of NVML that are needed stand here, so that nothing of
 * NVIDIA's is needed to build. */
#include "bench/gpu_watch.h"

#include "base/status.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NVML_SUCCESS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };
enum { REASON_IDLE = 1, REASON_SET_BY_USER = 2 }; // bits of nvmlDeviceGetCurrentClocksThrottleReasons

typedef struct nvmlDevice *device_handle;

struct nvml {
    int (*init)(void), (*shutdown)(void);
    int (*handle)(unsigned, device_handle *), (*handle_of_uuid)(const char *, device_handle *);
    int (*clock)(device_handle, int, unsigned *);
    int (*power)(device_handle, unsigned *); // mW
    int (*temperature)(device_handle, int, unsigned *);
    int (*energy)(device_handle, unsigned long long *); // mJ
    int (*reasons)(device_handle, unsigned long long *);
};

struct gpu_watch {
    struct nvml nvml;
    void *library;
    device_handle device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, is_running;
    struct gpu_report report;
    double energy_before;
};

static bool load(struct gpu_watch *w) {
    struct {
        const char *name;
        void *to;
    } functions[] = {{"nvmlInit_v2", &w->nvml.init},
                     {"nvmlShutdown", &w->nvml.shutdown},
                     {"nvmlDeviceGetHandleByIndex_v2", &w->nvml.handle},
                     {"nvmlDeviceGetHandleByUUID", &w->nvml.handle_of_uuid},
                     {"nvmlDeviceGetClockInfo", &w->nvml.clock},
                     {"nvmlDeviceGetPowerUsage", &w->nvml.power},
                     {"nvmlDeviceGetTemperature", &w->nvml.temperature},
                     {"nvmlDeviceGetTotalEnergyConsumption", &w->nvml.energy},
                     {"nvmlDeviceGetCurrentClocksThrottleReasons", &w->nvml.reasons}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*(void **)functions[i].to = dlsym(w->library, functions[i].name)))
            return false;
    return true;
}

static double joules(const struct gpu_watch *w) {
    unsigned long long mj = 0;
    return w->nvml.energy(w->device, &mj) == NVML_SUCCESS ? (double)mj * 1e-3 : 0;
}

static void sample(struct gpu_watch *w) {
    unsigned sm = 0, memory = 0, milliwatts = 0, celsius = 0;
    unsigned long long reasons = 0;
    struct gpu_report *r = &w->report;
    if (w->nvml.clock(w->device, CLOCK_SM, &sm) != NVML_SUCCESS ||
        w->nvml.power(w->device, &milliwatts) != NVML_SUCCESS)
        return;
    w->nvml.clock(w->device, CLOCK_MEMORY, &memory);
    w->nvml.temperature(w->device, SENSOR_GPU, &celsius);
    w->nvml.reasons(w->device, &reasons);
    r->sm_mhz_least = r->n_samples == 0 || (int)sm < r->sm_mhz_least ? (int)sm : r->sm_mhz_least;
    r->sm_mhz += sm; // sums, until the watch stops
    r->watts += milliwatts * 1e-3;
    r->memory_mhz = (int)memory;
    r->celsius = (int)celsius;
    r->held_back |= reasons & ~(unsigned long long)(REASON_IDLE | REASON_SET_BY_USER);
    r->n_samples++;
}

static void *watch(void *arg) {
    struct gpu_watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until;
        sample(w);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50 * 1000 * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* NVML counts all GPUs of the system, CUDA those that CUDA_VISIBLE_DEVICES leaves: "3,1" or "GPU-uuid,...". */
static bool find_device(struct gpu_watch *w) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char first[80] = "0", *end;
    if (visible && *visible)
        snprintf(first, sizeof first, "%.*s", (int)strcspn(visible, ","), visible);
    unsigned long index = strtoul(first, &end, 10);
    int code = *end == '\0' ? w->nvml.handle((unsigned)index, &w->device) : w->nvml.handle_of_uuid(first, &w->device);
    return code == NVML_SUCCESS;
}

bool gpu_watch_start(struct gpu_watch **out, const char **why) {
    struct gpu_watch *w = xcalloc(1, sizeof *w);
    *out = w;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    *why = NULL;
    if (!(w->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) || !load(w))
        *why = "there is no libnvidia-ml.so.1";
    else if (w->nvml.init() != NVML_SUCCESS)
        *why = "NVML does not start";
    else if (!find_device(w))
        *why = "NVML does not know the GPU";
    if (*why) {
        gpu_watch_stop(w, NULL);
        *out = NULL;
        return false;
    }
    w->energy_before = joules(w);
    w->is_running = pthread_create(&w->thread, NULL, watch, w) == 0;
    return true;
}

void gpu_watch_stop(struct gpu_watch *w, struct gpu_report *out) {
    if (out)
        *out = (struct gpu_report){0};
    if (!w)
        return;
    if (w->is_running) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    if (out && w->report.n_samples > 0) {
        *out = w->report;
        out->sm_mhz /= out->n_samples;
        out->watts /= out->n_samples;
        out->joules = w->energy_before > 0 ? joules(w) - w->energy_before : 0;
    }
    if (w->device)
        w->nvml.shutdown();
    if (w->library)
        dlclose(w->library);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
