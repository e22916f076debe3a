/* stand_in.c - a PJRT plugin that computes nothing and looks at everything: sizes of structs, order of calls, what is
 * given away and used again, what is freed twice or never. Built and driven by tests/cli/xla/test_xla_stand_in.py.
 *
 * Results are zeros, but those that take an argument's memory keep what is in it. What it finds goes to the file
 * $STAND_IN_LOG, a line each: "VIOLATION ..." at once; at the end "calls NAME N", "bytes to N", "bytes from N" (of the
 * device) and "left KIND N".
 * $STAND_IN_FAIL is NAME:N:CODE: the N-th call of that name fails with the code; an await's failure is that of its
 * event. $STAND_IN_NO_ALIAS: programs say that they write nothing in place. $STAND_IN_SLOW: milliseconds that compiling
 * takes. $STAND_IN_MEMORY: A:B, KiB of memory that the two devices say they have; otherwise they do not say.
 * $STAND_IN_PLATFORM: its name, cpu unless given. $STAND_IN_ORDER: "order NAME" at each call. */
#include "backend/xla/pjrt/pjrt_abi_run.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *format, ...) {
    const char *path = getenv("STAND_IN_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    va_list args;
    va_start(args, format);
    if (f) {
        vfprintf(f, format, args);
        fputc('\n', f);
        fclose(f);
    }
    va_end(args);
}

/* ---- objects ---- */

enum kind { ERROR, EVENT, CLIENT, BUFFER, LOADED, EXECUTABLE, N_KINDS };
static const char *const kind_names[] = {"error", "event", "client", "buffer", "loaded", "executable"};
static int n_live[N_KINDS];

struct object {
    enum kind kind;
    int is_alive, is_given; // is_given: its memory is another's now
    char text[200];         // of errors
    int code;
    int64_t n_bytes; // of buffers
    unsigned char *data;
    struct module *module; // of loaded and executable
};

static struct object *make(enum kind kind) {
    struct object *o = calloc(1, sizeof *o);
    o->kind = kind;
    o->is_alive = 1;
    pthread_mutex_lock(&lock);
    n_live[kind]++;
    pthread_mutex_unlock(&lock);
    return o;
}

static struct object *check(void *x, enum kind kind, const char *where) {
    struct object *o = x;
    if (!o || o->kind != kind || !o->is_alive) {
        say("VIOLATION %s: %s", where, !o ? "NULL" : o->kind != kind ? "of another kind" : "freed before");
        exit(99);
    }
    return o;
}

/* The object stays, so that a second time is seen. */
static void destroy(void *x, enum kind kind, const char *where) {
    struct object *o = check(x, kind, where);
    o->is_alive = 0;
    free(o->data);
    o->data = NULL;
    pthread_mutex_lock(&lock);
    n_live[kind]--;
    pthread_mutex_unlock(&lock);
}

/* ---- calls ---- */

enum { MOST_NAMES = 64 };
static const char *names[MOST_NAMES];
static int n_calls[MOST_NAMES], n_names, is_initialised;
static int64_t bytes_to, bytes_from; // the device, under lock

static int count(const char *name) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < n_names && strcmp(names[i], name) != 0)
        i++;
    if (i == n_names)
        names[n_names++] = name;
    int n = ++n_calls[i];
    pthread_mutex_unlock(&lock);
    return n;
}

static struct pjrt_error *fault(const char *text, int code) {
    struct object *e = make(ERROR);
    snprintf(e->text, sizeof e->text, "%s", text);
    e->code = code;
    return (struct pjrt_error *)e;
}

/* The size, and zeros behind what we know of a struct. */
static void check_struct(const void *args, size_t known, const char *name) {
    const unsigned char *bytes = args;
    size_t n;
    memcpy(&n, bytes, sizeof n);
    if (n < known || n > 4096)
        say("VIOLATION %s: a struct of %zu bytes, of at least %zu", name, n, known);
    for (size_t i = (known + 7) / 8 * 8; i < n && n <= 4096; i++)
        if (bytes[i]) {
            say("VIOLATION %s: byte %zu is not 0", name, i);
            return;
        }
}

static struct pjrt_error *enter(const void *args, size_t known, const char *name) {
    const char *plan = getenv("STAND_IN_FAIL");
    int n = count(name), at = 0, code = 0;
    char wanted[64] = "";
    check_struct(args, known, name);
    if (getenv("STAND_IN_ORDER"))
        say("order %s", name);
    if (!is_initialised && strcmp(name, "Plugin_Initialize") != 0)
        say("VIOLATION %s: before Plugin_Initialize", name);
    if (plan && sscanf(plan, "%63[^:]:%d:%d", wanted, &at, &code) == 3 && strcmp(wanted, name) == 0 && n == at)
        return fault("the stand-in fails here\nand says more", code);
    return NULL;
}
#define ENTER(name)                                                   \
    do {                                                              \
        struct pjrt_error *entered = enter(args, sizeof *args, name); \
        if (entered)                                                  \
            return entered;                                           \
    } while (0)

static void error_destroy(struct pjrt_error_args *args) { destroy(args->error, ERROR, "Error_Destroy"); }

static void error_message(struct pjrt_error_message_args *args) {
    struct object *e = check(args->error, ERROR, "Error_Message");
    args->message = e->text;
    args->message_size = strlen(e->text);
}

static struct pjrt_error *error_code(struct pjrt_error_code_args *args) {
    args->code = check(args->error, ERROR, "Error_GetCode")->code;
    return NULL;
}

static struct pjrt_error *initialize(struct pjrt_plugin_args *args) {
    ENTER("Plugin_Initialize");
    if (is_initialised)
        say("VIOLATION Plugin_Initialize: twice");
    is_initialised = 1;
    return NULL;
}

static struct pjrt_error *attributes(struct pjrt_attributes_args *args) {
    ENTER("Plugin_Attributes");
    return NULL;
}

static struct pjrt_error *event_await(struct pjrt_event_args *args) {
    check(args->event, EVENT, "Event_Await");
    ENTER("Event_Await");
    return NULL;
}

static struct pjrt_error *event_destroy(struct pjrt_event_args *args) {
    ENTER("Event_Destroy");
    destroy(args->event, EVENT, "Event_Destroy");
    return NULL;
}

/* ---- client and devices ---- */

static int devices[2];
static struct pjrt_device *const device_list[] = {(struct pjrt_device *)&devices[0], (struct pjrt_device *)&devices[1]};

static struct pjrt_error *client_create(struct pjrt_client_create_args *args) {
    ENTER("Client_Create");
    args->client = (struct pjrt_client *)make(CLIENT);
    return NULL;
}

static struct pjrt_error *client_destroy(struct pjrt_client_args *args) {
    ENTER("Client_Destroy");
    for (int k = 0; k < N_KINDS; k++)
        if (k != CLIENT && n_live[k] > 0)
            say("VIOLATION Client_Destroy: %d of kind %s are left", n_live[k], kind_names[k]);
    destroy(args->client, CLIENT, "Client_Destroy");
    for (int i = 0; i < n_names; i++)
        say("calls %s %d", names[i], n_calls[i]);
    say("bytes to %lld", (long long)bytes_to);
    say("bytes from %lld", (long long)bytes_from);
    say("left %d", n_live[CLIENT]);
    return NULL;
}

static struct pjrt_error *platform(struct pjrt_client_text_args *args) {
    ENTER("Client_PlatformName");
    const char *given = getenv("STAND_IN_PLATFORM");
    args->text = given ? given : "cpu";
    args->text_size = strlen(args->text);
    return NULL;
}

static struct pjrt_error *version(struct pjrt_client_text_args *args) {
    ENTER("Client_PlatformVersion");
    args->text = "stand-in";
    args->text_size = 8;
    return NULL;
}

static struct pjrt_error *addressable(struct pjrt_devices_args *args) {
    ENTER("Client_AddressableDevices");
    args->devices = device_list;
    args->n_devices = 2;
    return NULL;
}

static struct pjrt_error *description(struct pjrt_description_args *args) {
    ENTER("Device_GetDescription");
    args->description = (struct pjrt_description *)args->device;
    return NULL;
}

static struct pjrt_error *description_id(struct pjrt_description_id_args *args) {
    ENTER("DeviceDescription_Id");
    args->id = (int)((int *)(void *)args->description - devices);
    return NULL;
}

static struct pjrt_error *device_memory(struct pjrt_device_memory_args *args) {
    const char *text = getenv("STAND_IN_MEMORY");
    int kib[2] = {0};
    ENTER("Device_MemoryStats");
    args->limit_is_set = text && sscanf(text, "%d:%d", &kib[0], &kib[1]) == 2;
    args->bytes_limit = (int64_t)kib[(int *)(void *)args->device - devices] << 10;
    return NULL;
}

static struct pjrt_error *description_kind(struct pjrt_description_kind_args *args) {
    ENTER("DeviceDescription_Kind");
    args->kind = "nothing";
    args->kind_size = 7;
    return NULL;
}

/* ---- programs: what their text says of arguments and results ---- */

enum { MOST_ARGUMENTS = 4096, MOST_RESULTS = 1024 };
struct module {
    int n_arguments, n_results, n_replicas;
    int64_t argument[MOST_ARGUMENTS], result[MOST_RESULTS]; // bytes
    int alias[MOST_ARGUMENTS];                              // result; -1
};

/* "tensor<4x8xf32>" at *at; moves on behind it. */
static int64_t type_bytes(const char **at) {
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"f32", 4}, {"bf16", 2}, {"i32", 4}, {"ui32", 4}, {"i8", 1}, {"ui64", 8}};
    const char *p = *at + strlen("tensor<");
    int64_t n = 1;
    for (char *end; *p >= '0' && *p <= '9'; p = end + 1)
        n *= strtoll(p, &end, 10);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strncmp(p, types[i].name, strlen(types[i].name)) == 0 && p[strlen(types[i].name)] == '>') {
            *at = p + strlen(types[i].name) + 1;
            return n * types[i].bytes;
        }
    say("VIOLATION a module has the type %.20s", p);
    exit(99);
}

static struct module *read_module(const struct pjrt_program *program) {
    struct module *m = calloc(1, sizeof *m);
    char *text = strndup(program->code, program->code_size);
    const char *at = strstr(text, "@main("), *arrow = at ? strstr(at, ") -> (") : NULL, *replicas;
    if (program->format_size != 4 || memcmp(program->format, "mlir", 4) != 0 || !at || !arrow) {
        say("VIOLATION Client_Compile: no module in mlir");
        exit(99);
    }
    replicas = strstr(text, "num_replicas = ");
    m->n_replicas = replicas ? atoi(replicas + 15) : 0;
    for (const char *p; (p = strstr(at, "tensor<")) && p < arrow;) {
        int i = m->n_arguments++;
        m->argument[i] = type_bytes(&p);
        m->alias[i] = strncmp(p, " {tf.aliasing_output = ", 23) == 0 ? atoi(p + 23) : -1;
        at = p;
    }
    const char *end = strchr(arrow + 6, ')');
    for (const char *p = arrow; (p = strstr(p, "tensor<")) && p < end;)
        m->result[m->n_results++] = type_bytes(&p);
    free(text);
    return m;
}

static struct pjrt_error *compile(struct pjrt_client_compile_args *args) {
    ENTER("Client_Compile");
    check_struct(args->program, sizeof *args->program, "PJRT_Program");
    if (args->options_size < 3 || args->options[0] != 0x1a)
        say("VIOLATION Client_Compile: no options");
    struct object *o = make(LOADED);
    o->module = read_module(args->program);
    if (getenv("STAND_IN_SLOW"))
        usleep((unsigned)atoi(getenv("STAND_IN_SLOW")) * 1000);
    args->loaded = (struct pjrt_loaded *)o;
    return NULL;
}

static struct pjrt_error *loaded_destroy(struct pjrt_loaded_args *args) {
    ENTER("LoadedExecutable_Destroy");
    destroy(args->loaded, LOADED, "LoadedExecutable_Destroy");
    return NULL;
}

static struct pjrt_error *get_executable(struct pjrt_get_executable_args *args) {
    ENTER("LoadedExecutable_GetExecutable");
    struct object *o = make(EXECUTABLE);
    o->module = check(args->loaded, LOADED, "LoadedExecutable_GetExecutable")->module;
    args->executable = (struct pjrt_executable *)o;
    return NULL;
}

static struct pjrt_error *executable_destroy(struct pjrt_executable_args *args) {
    ENTER("Executable_Destroy");
    destroy(args->executable, EXECUTABLE, "Executable_Destroy");
    return NULL;
}

static struct pjrt_error *memory_stats(struct pjrt_memory_stats_args *args) {
    ENTER("Executable_GetCompiledMemoryStats");
    const struct module *m = check(args->executable, EXECUTABLE, "Executable_GetCompiledMemoryStats")->module;
    for (int i = 0; i < m->n_arguments; i++) {
        args->argument_bytes += m->argument[i];
        args->alias_bytes += m->alias[i] >= 0 && !getenv("STAND_IN_NO_ALIAS") ? m->argument[i] : 0;
    }
    return NULL;
}

static struct pjrt_error *serialize(struct pjrt_serialize_args *args) {
    ENTER("Executable_Serialize");
    return fault("not done", PJRT_UNIMPLEMENTED);
}

/* ---- buffers ---- */

static struct pjrt_event *ready(void) { return (struct pjrt_event *)make(EVENT); }

static void add_bytes(int64_t *to, int64_t n) {
    pthread_mutex_lock(&lock);
    *to += n;
    pthread_mutex_unlock(&lock);
}

static struct pjrt_error *from_host(struct pjrt_from_host_args *args) {
    static const int sizes[] = {[PJRT_PRED] = 1, [PJRT_S8] = 1,  [PJRT_S32] = 4, [PJRT_U32] = 4,
                                [PJRT_U64] = 8,  [PJRT_F32] = 4, [PJRT_BF16] = 2};
    ENTER("Client_BufferFromHostBuffer");
    check(args->client, CLIENT, "Client_BufferFromHostBuffer");
    if (args->device != device_list[0] && args->device != device_list[1])
        say("VIOLATION Client_BufferFromHostBuffer: no device of ours");
    struct object *o = make(BUFFER);
    o->n_bytes = sizes[args->type];
    for (size_t i = 0; i < args->n_dims; i++)
        o->n_bytes *= args->dims[i];
    o->data = malloc((size_t)o->n_bytes + 1);
    memcpy(o->data, args->data, (size_t)o->n_bytes);
    add_bytes(&bytes_to, o->n_bytes);
    args->buffer = (struct pjrt_buffer *)o;
    args->done = ready();
    return NULL;
}

static struct pjrt_error *buffer_destroy(struct pjrt_buffer_args *args) {
    ENTER("Buffer_Destroy");
    destroy(args->buffer, BUFFER, "Buffer_Destroy");
    return NULL;
}

static struct pjrt_error *to_host(struct pjrt_to_host_args *args) {
    ENTER("Buffer_ToHostBuffer");
    struct object *o = check(args->buffer, BUFFER, "Buffer_ToHostBuffer");
    if (o->is_given || (int64_t)args->to_size < o->n_bytes)
        say("VIOLATION Buffer_ToHostBuffer: %s", o->is_given ? "of what was given away" : "into too little");
    else
        memcpy(args->to, o->data, (size_t)o->n_bytes);
    add_bytes(&bytes_from, o->n_bytes);
    args->event = ready();
    return NULL;
}

static bool is_in_place(const struct module *m, int result) {
    bool is = false;
    for (int i = 0; i < m->n_arguments && !is; i++)
        is = m->alias[i] == result;
    return is;
}

static void run_replica(const struct module *m, struct pjrt_buffer *const *arguments, struct pjrt_buffer **outputs) {
    for (int i = 0; i < m->n_results; i++) {
        struct object *o = make(BUFFER);
        o->n_bytes = m->result[i];
        if (!is_in_place(m, i))
            o->data = calloc((size_t)o->n_bytes + 1, 1);
        outputs[i] = (struct pjrt_buffer *)o;
    }
    for (int i = 0; i < m->n_arguments; i++) {
        struct object *a = check(arguments[i], BUFFER, "Execute: an argument");
        if (a->is_given || a->n_bytes != m->argument[i])
            say("VIOLATION Execute: argument %d %s", i, a->is_given ? "was given away before" : "has another size");
        if (m->alias[i] < 0)
            continue;
        struct object *o = (struct object *)outputs[m->alias[i]];
        if (o->n_bytes != a->n_bytes)
            say("VIOLATION Execute: argument %d becomes a result of another size", i);
        o->data = a->data; // no copy, as a cache is large; NULL if it was given away before
        a->data = NULL;
        a->is_given = 1;
    }
}

static struct pjrt_error *execute(struct pjrt_execute_args *args) {
    ENTER("LoadedExecutable_Execute");
    check_struct(args->options, sizeof *args->options, "PJRT_ExecuteOptions");
    const struct module *m = check(args->loaded, LOADED, "LoadedExecutable_Execute")->module;
    if ((int)args->n_arguments != m->n_arguments || (int)args->n_devices != m->n_replicas)
        say("VIOLATION Execute: %zu arguments on %zu devices, of %d on %d", args->n_arguments, args->n_devices,
            m->n_arguments, m->n_replicas);
    for (size_t d = 0; d < args->n_devices && (int)args->n_arguments == m->n_arguments; d++)
        run_replica(m, args->arguments[d], args->outputs[d]);
    return NULL;
}

/* ---- the table ---- */

enum { N_SLOTS = 118 };
static struct {
    size_t struct_size;
    void *extension;
    size_t version_size;
    void *version_extension;
    int32_t major, minor;
    void *slots[N_SLOTS];
} table = {.struct_size = PJRT_TABLE_FIRST + N_SLOTS * sizeof(void *), .version_size = 24, .major = 0, .minor = 81};

const void *GetPjrtApi(void);
const void *GetPjrtApi(void) {
    const struct {
        int slot;
        void *function;
    } all[] = {
        {PJRT_ERROR_DESTROY, (void *)error_destroy},
        {PJRT_ERROR_MESSAGE, (void *)error_message},
        {PJRT_ERROR_GET_CODE, (void *)error_code},
        {PJRT_PLUGIN_INITIALIZE, (void *)initialize},
        {PJRT_PLUGIN_ATTRIBUTES, (void *)attributes},
        {PJRT_EVENT_DESTROY, (void *)event_destroy},
        {PJRT_EVENT_AWAIT, (void *)event_await},
        {PJRT_CLIENT_CREATE, (void *)client_create},
        {PJRT_CLIENT_DESTROY, (void *)client_destroy},
        {PJRT_CLIENT_PLATFORM_NAME, (void *)platform},
        {PJRT_CLIENT_PLATFORM_VERSION, (void *)version},
        {PJRT_CLIENT_ADDRESSABLE_DEVICES, (void *)addressable},
        {PJRT_CLIENT_COMPILE, (void *)compile},
        {PJRT_CLIENT_BUFFER_FROM_HOST, (void *)from_host},
        {PJRT_DEVICE_DESCRIPTION_ID, (void *)description_id},
        {PJRT_DEVICE_DESCRIPTION_KIND, (void *)description_kind},
        {PJRT_DEVICE_GET_DESCRIPTION, (void *)description},
        {PJRT_DEVICE_MEMORY_STATS, (void *)device_memory},
        {PJRT_EXECUTABLE_DESTROY, (void *)executable_destroy},
        {PJRT_EXECUTABLE_SERIALIZE, (void *)serialize},
        {PJRT_LOADED_DESTROY, (void *)loaded_destroy},
        {PJRT_LOADED_GET_EXECUTABLE, (void *)get_executable},
        {PJRT_LOADED_EXECUTE, (void *)execute},
        {PJRT_BUFFER_DESTROY, (void *)buffer_destroy},
        {PJRT_BUFFER_TO_HOST, (void *)to_host},
        {PJRT_MEMORY_STATS, (void *)memory_stats},
    };
    const char *without = getenv("STAND_IN_WITHOUT"); // the number of a slot
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        table.slots[all[i].slot] = without && atoi(without) == all[i].slot ? NULL : all[i].function;
    if (getenv("STAND_IN_MINOR"))
        table.minor = atoi(getenv("STAND_IN_MINOR"));
    if (getenv("STAND_IN_SLOTS"))
        table.struct_size = PJRT_TABLE_FIRST + (size_t)atoi(getenv("STAND_IN_SLOTS")) * sizeof(void *);
    return &table;
}
