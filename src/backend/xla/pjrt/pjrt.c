/* pjrt.c - see pjrt.h: loading a plugin, its client, errors and events. */
#include "backend/xla/pjrt/pjrt.h"

#include "backend/xla/pjrt/pjrt_env.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pjrt *loaded; // all of this process

/* ---- calls and errors ---- */

typedef struct pjrt_error *call_function(void *args);
typedef void void_function(void *args);

static void *slot_of(const struct pjrt *p, enum pjrt_slot slot) {
    size_t n_bytes, at = PJRT_TABLE_FIRST + sizeof(void *) * (size_t)slot;
    void *function = NULL;
    memcpy(&n_bytes, p->table, sizeof n_bytes);
    if (at + sizeof function <= n_bytes)
        memcpy(&function, p->table + at, sizeof function);
    return function;
}

bool pjrt_has(const struct pjrt *p, enum pjrt_slot slot) { return slot_of(p, slot) != NULL; }

static void *checked_slot(const struct pjrt *p, enum pjrt_slot slot) {
    void *function = slot_of(p, slot);
    BUG_IF(!function); // those without which errors cannot be read: pjrt_load has asked for them
    return function;
}

/* The first line of what the plugin says, as a sentence; frees it. */
static enum status take_error(const struct pjrt *p, struct pjrt_error *error, const char *what, struct error *err) {
    PJRT_PADDED(pjrt_error_message_args) message = {.a = {.struct_size = sizeof message, .error = error}};
    PJRT_PADDED(pjrt_error_code_args) code = {.a = {.struct_size = sizeof code, .error = error}};
    PJRT_PADDED(pjrt_error_args) destroy = {.a = {.struct_size = sizeof destroy, .error = error}};
    ((void_function *)checked_slot(p, PJRT_ERROR_MESSAGE))(&message);
    call_function *get_code = (call_function *)slot_of(p, PJRT_ERROR_GET_CODE);
    struct pjrt_error *second = get_code ? get_code(&code) : NULL;
    enum status st = code.a.code == PJRT_RESOURCE_EXHAUSTED ? ERR_MEMORY
                     : code.a.code == PJRT_UNIMPLEMENTED    ? ERR_UNSUPPORTED
                                                            : ERR_DEVICE;
    size_t n = 0;
    while (n < message.a.message_size && n < 600 && message.a.message[n] != '\n')
        n++;
    fail(err, st, "device xla: %s: %.*s", what, (int)n, n ? message.a.message : "");
    ((void_function *)checked_slot(p, PJRT_ERROR_DESTROY))(&destroy);
    if (second) {
        destroy.a.error = second;
        ((void_function *)checked_slot(p, PJRT_ERROR_DESTROY))(&destroy);
    }
    return st;
}

enum status pjrt_call(const struct pjrt *p, enum pjrt_slot slot, void *args, const char *what, struct error *err) {
    call_function *function = (call_function *)slot_of(p, slot);
    size_t n_bytes = PJRT_STRUCT_BYTES;
    if (!function)
        return fail(err, ERR_UNSUPPORTED, "device xla: %s: %s (PJRT %d.%d) lacks call %d", what, p->path, p->major,
                    p->minor, (int)slot);
    memcpy(args, &n_bytes, sizeof n_bytes);
    struct pjrt_error *error = function(args);
    return error ? take_error(p, error, what, err) : OK;
}

enum status pjrt_await(const struct pjrt *p, struct pjrt_event *event, const char *what, struct error *err) {
    if (!event)
        return OK;
    PJRT_PADDED(pjrt_event_args) await = {.a = {.event = event}}, destroy = {.a = {.event = event}};
    struct error ignored;
    enum status st = pjrt_call(p, PJRT_EVENT_AWAIT, &await, what, err);
    (void)pjrt_call(p, PJRT_EVENT_DESTROY, &destroy, what, &ignored);
    return st;
}

/* ---- loading ---- */

static bool is_named(const struct pjrt_named_value *v, const char *name) {
    return v->name_size == strlen(name) && memcmp(v->name, name, v->name_size) == 0;
}

static void read_attributes(struct pjrt *p) {
    PJRT_PADDED(pjrt_attributes_args) args = {0};
    struct error ignored;
    if (pjrt_call(p, PJRT_PLUGIN_ATTRIBUTES, &args, "Plugin_Attributes", &ignored) != OK)
        return; // what it says only describes it
    for (size_t i = 0; i < args.a.n_attributes; i++) {
        const struct pjrt_named_value *v = &args.a.attributes[i];
        if (is_named(v, "xla_version") && v->type == PJRT_INT64)
            p->xla_version = v->value.int64;
        if (is_named(v, "stablehlo_current_version") && v->type == PJRT_INT64_LIST && v->value_size == 3)
            memcpy(p->stablehlo, v->value.int64_list, sizeof p->stablehlo);
        p->has_gpus |= is_named(v, "cuda_version") || is_named(v, "rocm_version");
    }
}

static enum status check_version(struct pjrt *p, struct error *err) {
    int32_t version[2];
    size_t n_bytes;
    memcpy(&n_bytes, p->table, sizeof n_bytes);
    if (n_bytes < PJRT_TABLE_FIRST)
        return fail(err, ERR_FORMAT, "device xla: %s: its table of functions has %zu bytes", p->path, n_bytes);
    memcpy(version, p->table + 32, sizeof version);
    p->major = version[0];
    p->minor = version[1];
    if (p->major != PJRT_MAJOR || p->minor < PJRT_LEAST_MINOR)
        return fail(err, ERR_UNSUPPORTED, "device xla: %s: PJRT %d.%d is not between %d.%d and %d.x", p->path, p->major,
                    p->minor, PJRT_MAJOR, PJRT_LEAST_MINOR, PJRT_MAJOR);
    if (!pjrt_has(p, PJRT_ERROR_MESSAGE) || !pjrt_has(p, PJRT_ERROR_DESTROY))
        return fail(err, ERR_FORMAT, "device xla: %s: it cannot say what went wrong", p->path);
    return OK;
}

static void free_plugin(struct pjrt *p) {
    free(p->devices);
    free(p->path);
    free(p->platform);
    free(p->version);
    free(p);
}

static enum status load_library(struct pjrt *p, struct error *err) {
    pjrt_prepare_environment(p->path);
    void *library = dlopen(p->path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(err, ERR_UNSUPPORTED, "device xla: %s", dlerror());
    void *symbol = dlsym(library, "GetPjrtApi");
    if (!symbol)
        return fail(err, ERR_UNSUPPORTED, "device xla: %s: no PJRT plugin, as it has no function GetPjrtApi", p->path);
    const unsigned char *(*get)(void);
    memcpy(&get, &symbol, sizeof get);
    p->table = get();
    if (!p->table)
        return fail(err, ERR_UNSUPPORTED, "device xla: %s: GetPjrtApi gives nothing", p->path);
    TRY(check_version(p, err));
    PJRT_PADDED(pjrt_plugin_args) args = {0};
    TRY(pjrt_call(p, PJRT_PLUGIN_INITIALIZE, &args, "Plugin_Initialize", err));
    read_attributes(p);
    return OK;
}

static enum status find_or_load(const char *path, struct pjrt **out, struct error *err) {
    for (struct pjrt *p = loaded; p; p = p->next)
        if (strcmp(p->path, path) == 0) {
            *out = p;
            return OK;
        }
    struct pjrt *p = xcalloc(1, sizeof *p);
    p->path = xstrdup(path);
    enum status st = load_library(p, err);
    if (st != OK) {
        free_plugin(p);
        return st;
    }
    p->next = loaded;
    loaded = *out = p;
    return OK;
}

enum status pjrt_load(const char *path, struct pjrt **out, struct error *err) {
    pthread_mutex_lock(&lock);
    enum status st = find_or_load(path, out, err);
    pthread_mutex_unlock(&lock);
    return st;
}

/* ---- the client ---- */

static enum status client_text(const struct pjrt *p, enum pjrt_slot slot, const char *what, char **out,
                               struct error *err) {
    PJRT_PADDED(pjrt_client_text_args) args = {.a = {.client = p->client}};
    TRY(pjrt_call(p, slot, &args, what, err));
    *out = xcalloc(args.a.text_size + 1, 1);
    memcpy(*out, args.a.text, args.a.text_size);
    return OK;
}

static enum status describe_client(struct pjrt *p, struct error *err) {
    PJRT_PADDED(pjrt_devices_args) args = {.a = {.client = p->client}};
    TRY(client_text(p, PJRT_CLIENT_PLATFORM_NAME, "Client_PlatformName", &p->platform, err));
    TRY(client_text(p, PJRT_CLIENT_PLATFORM_VERSION, "Client_PlatformVersion", &p->version, err));
    TRY(pjrt_call(p, PJRT_CLIENT_ADDRESSABLE_DEVICES, &args, "Client_AddressableDevices", err));
    if (args.a.n_devices == 0 || args.a.n_devices > 4096)
        return fail(err, ERR_DEVICE, "device xla: %s: it has %zu devices here", p->path, args.a.n_devices);
    p->n_devices = (int)args.a.n_devices;
    p->devices = xcalloc(args.a.n_devices, sizeof *p->devices);
    memcpy(p->devices, args.a.devices, args.a.n_devices * sizeof *p->devices);
    return OK;
}

static struct pjrt_named_value named(const char *name, enum pjrt_value_type type) {
    return (struct pjrt_named_value){.struct_size = sizeof(struct pjrt_named_value),
                                     .name = name,
                                     .name_size = strlen(name),
                                     .type = type,
                                     .value_size = 1};
}

static void destroy_client(struct pjrt *p) {
    PJRT_PADDED(pjrt_client_args) args = {.a = {.client = p->client}};
    struct error ignored;
    if (p->client)
        (void)pjrt_call(p, PJRT_CLIENT_DESTROY, &args, "Client_Destroy", &ignored);
    free(p->devices);
    free(p->platform);
    free(p->version);
    p->client = NULL;
    p->devices = NULL;
    p->platform = p->version = NULL;
    p->n_devices = 0;
}

static enum status create_client(struct pjrt *p, const struct pjrt_options *o, struct error *err) {
    struct pjrt_named_value values[2] = {named("memory_fraction", PJRT_FLOAT), named("preallocate", PJRT_BOOL)};
    values[0].value.float32 = o->memory_share > 0 ? (float)o->memory_share : 0.92f;
    values[1].value.boolean = false; // memory is taken as it is used: others may be on the card
    PJRT_PADDED(pjrt_client_create_args)
    args = {.a = {.options = values, .n_options = p->has_gpus ? ARRAY_LEN(values) : 0}};
    TRY(pjrt_call(p, PJRT_CLIENT_CREATE, &args, "Client_Create", err));
    p->client = args.a.client;
    enum status st = describe_client(p, err);
    if (st != OK)
        destroy_client(p);
    return st;
}

enum status pjrt_open(const char *path, const struct pjrt_options *options, struct pjrt **out, struct error *err) {
    struct pjrt *p = NULL;
    pthread_mutex_lock(&lock);
    enum status st = find_or_load(path, &p, err);
    if (st == OK && !p->client)
        st = create_client(p, options, err);
    if (st == OK)
        p->n_users++;
    pthread_mutex_unlock(&lock);
    *out = st == OK ? p : NULL;
    return st;
}

void pjrt_close(struct pjrt *p) {
    if (!p)
        return;
    pthread_mutex_lock(&lock);
    if (--p->n_users == 0)
        destroy_client(p);
    pthread_mutex_unlock(&lock);
}
