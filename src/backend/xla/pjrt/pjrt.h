/* pjrt.h - a PJRT plugin and its client: loading, calls, buffers. Above the C interface of pjrt_abi.h, and all there is
 * of it that other files need: errors become sentences, every error and event is freed.
 *
 *     TRY(pjrt_find(path_or_null, path, &err));                 // where the plugin is
 *     TRY(pjrt_open(path, &(struct pjrt_options){0}, &p, &err));
 *     TRY(pjrt_upload(p, 0, PJRT_F32, (int64_t[]){4, 8}, 2, x, &buffer, &err));
 *
 * A plugin is loaded once a process and has one client, which is counted: pjrt_open of the same path gives the same
 * one, with the options of the first. It is never unloaded, as its threads go on. All calls are safe from any thread.
 *
 * What a plugin answers becomes "device xla: WHAT: its sentence": ERR_MEMORY where the device has no memory left,
 * ERR_UNSUPPORTED where it lacks the call, else ERR_DEVICE. */
#pragma once

#include "backend/xla/pjrt/pjrt_abi.h"
#include "base/status.h"

enum { PJRT_PATH_BYTES = 4096 };

/* Where the plugin is: `given`, if not NULL; else $GYRE_XLA_PLUGIN, $TPU_LIBRARY_PATH; else that of a Python package
 * for a TPU, where this machine has one; for a GPU, likewise; or for the CPU, in $VIRTUAL_ENV or a site-packages folder
 * of the user, the system or the python3 in $PATH. ERR_UNSUPPORTED says where it was looked for, and how to get one. */
enum status pjrt_find(const char *given, char path[PJRT_PATH_BYTES], struct error *err);

struct pjrt_options {
    double memory_share; // of a GPU's memory, that the client may take; 0: 0.92
};

struct pjrt {
    const unsigned char *table;
    struct pjrt_client *client; // NULL: only loaded
    char *path, *platform, *version;
    int major, minor;     // of the interface
    int64_t xla_version;  // as the plugin counts; 0: it does not say
    int64_t stablehlo[3]; // the version that it is built with; 0: it does not say
    bool has_gpus;        // cuda_version is among its attributes
    struct pjrt_device **devices;
    int n_devices;
    int n_users;
    struct pjrt *next;
};

/* Loads the plugin, initialises it and makes its client. */
enum status pjrt_open(const char *path, const struct pjrt_options *options, struct pjrt **out, struct error *err);
/* Loads and initialises it, without a client: to compile for hardware that is not there. */
enum status pjrt_load(const char *path, struct pjrt **out, struct error *err);
void pjrt_close(struct pjrt *p); // the last user's frees the client; NULL is fine

/* One call; `args` is a PJRT_PADDED struct, whose size it fills in. `what` begins the sentence. */
enum status pjrt_call(const struct pjrt *p, enum pjrt_slot slot, void *args, const char *what, struct error *err);
bool pjrt_has(const struct pjrt *p, enum pjrt_slot slot);

/* ---- devices ---- */

struct pjrt_memory_bytes {
    int64_t limit, in_use; // 0: not known
};
int pjrt_device_id(const struct pjrt *p, int device);                         // as device assignments number them
void pjrt_device_kind(const struct pjrt *p, int device, char *out, size_t n); // "NVIDIA H200", "TPU v6 lite"; or ""
void pjrt_device_memory(const struct pjrt *p, int device, struct pjrt_memory_bytes *out);

/* ---- buffers ---- */

int64_t pjrt_type_bytes(enum pjrt_type type);

/* Dense row-major data to a device. The bytes may change when it returns. */
enum status pjrt_upload(const struct pjrt *p, int device, enum pjrt_type type, const int64_t *dims, int n_dims,
                        const void *data, struct pjrt_buffer **out, struct error *err);
/* The bytes stay as they are until pjrt_await(*done). */
enum status pjrt_upload_start(const struct pjrt *p, int device, enum pjrt_type type, const int64_t *dims, int n_dims,
                              const void *data, struct pjrt_buffer **out, struct pjrt_event **done, struct error *err);
/* All of a buffer of one dimension, of so many bytes. Waits for what computes it. */
enum status pjrt_download(const struct pjrt *p, struct pjrt_buffer *buffer, void *to, int64_t n_bytes,
                          struct error *err);
void pjrt_buffer_free(const struct pjrt *p, struct pjrt_buffer *buffer); // NULL is fine

/* Waits, and frees the event; NULL is fine. */
enum status pjrt_await(const struct pjrt *p, struct pjrt_event *event, const char *what, struct error *err);
