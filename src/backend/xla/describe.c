/* describe.c - see backend.h: what a plugin and its devices are. */
#include "backend/xla/backend.h"

#include "backend/xla/pjrt/pjrt.h"
#include "base/json/json.h"

#include <stdlib.h>

typedef void writer(const struct pjrt *p, struct buf *out);

static enum status describe(const char *plugin, writer *write, struct buf *out, struct error *err) {
    char path[PJRT_PATH_BYTES];
    struct pjrt *p;
    TRY(pjrt_find(plugin, path, err));
    TRY(pjrt_open(path, &(struct pjrt_options){0}, &p, err));
    write(p, out);
    pjrt_close(p);
    return OK;
}

/* "0.115"; of three numbers with two dots. */
static void put_version(struct buf *out, const int64_t *numbers, int n) {
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%lld", i ? "." : "", (long long)numbers[i]);
}

static void put_memory(struct buf *out, const struct pjrt *p, int device) {
    struct pjrt_memory_bytes m;
    pjrt_device_memory(p, device, &m);
    if (m.limit > 0)
        buf_printf(out, ", %.2f GiB, %.2f of them in use", (double)m.limit / (1 << 30), (double)m.in_use / (1 << 30));
}

static void write_text(const struct pjrt *p, struct buf *out) {
    char kind[128];
    buf_printf(out, "%-14s%s\n%-14sPJRT %d.%d", "plugin", p->path, "versions", p->major, p->minor);
    if (p->stablehlo[0] > 0) {
        buf_printf(out, ", StableHLO ");
        put_version(out, p->stablehlo, 3);
    }
    if (p->xla_version > 0)
        buf_printf(out, ", XLA %lld", (long long)p->xla_version);
    buf_printf(out, "\n%-14s%s, %s\n", "platform", p->platform, p->version);
    for (int i = 0; i < p->n_devices; i++) {
        pjrt_device_kind(p, i, kind, sizeof kind);
        buf_printf(out, "%-14s%d: %s", i ? "" : "devices", pjrt_device_id(p, i), kind[0] ? kind : "unnamed");
        put_memory(out, p, i);
        buf_push(out, '\n');
    }
}

static json_t *device_json(const struct pjrt *p, int device) {
    struct pjrt_memory_bytes m;
    char kind[128];
    pjrt_device_kind(p, device, kind, sizeof kind);
    pjrt_device_memory(p, device, &m);
    return json_pack("{s:i, s:s, s:o, s:o}", "id", pjrt_device_id(p, device), "kind", kind, "memory_bytes",
                     m.limit > 0 ? json_integer(m.limit) : json_null(), "memory_bytes_in_use",
                     m.limit > 0 ? json_integer(m.in_use) : json_null());
}

static void write_json(const struct pjrt *p, struct buf *out) {
    json_t *devices = json_array();
    struct buf interface = {0}, stablehlo = {0};
    buf_printf(&interface, "%d.%d", p->major, p->minor);
    put_version(&stablehlo, p->stablehlo, 3);
    for (int i = 0; i < p->n_devices; i++)
        json_array_append_new(devices, device_json(p, i));
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:o}", "plugin", p->path, "pjrt", interface.ptr, "stablehlo",
                          stablehlo.ptr, "xla", (json_int_t)p->xla_version, "platform", p->platform, "platform_version",
                          p->version, "devices", devices);
    char *text = json_dumps(o, JSON_INDENT(2));
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(o);
    buf_release(&interface);
    buf_release(&stablehlo);
}

enum status xla_describe(const char *plugin, struct buf *out, struct error *err) {
    return describe(plugin, write_text, out, err);
}

enum status xla_describe_json(const char *plugin, struct buf *out, struct error *err) {
    return describe(plugin, write_json, out, err);
}
