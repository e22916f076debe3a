/* fingerprint.c - see fingerprint.h. */
#include "main/model/fingerprint.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/gguf/gguf.h"
#include "base/gguf/gguf_find.h"
#include "file/checkpoint.h"

#include <dirent.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include <xxhash.h>

static void add(XXH3_state_t *h, const void *bytes, size_t n) {
    XXH3_64bits_update(h, &n, sizeof n); // so that "ab","c" is not "a","bc"
    XXH3_64bits_update(h, bytes, n);
}

static void add_word(XXH3_state_t *h, const char *word) { add(h, word, strlen(word)); }

/* Of a file that is there; one that is not adds nothing. */
static void add_file(XXH3_state_t *h, const char *path, size_t most) {
    struct buf bytes = {0};
    if (file_read(path, most, &bytes, NULL) == OK)
        add(h, bytes.ptr, bytes.len);
    buf_release(&bytes);
}

// ---- weights ----------------------------------------------------------------------------------------------------

/* From the beginning, the middle and the end. */
static void add_sample(XXH3_state_t *h, const struct stored_tensor *t) {
    enum { PIECE = 64 };
    size_t n = MIN(t->n_bytes, (size_t)PIECE);
    const size_t at[] = {0, (t->n_bytes - n) / 2, t->n_bytes - n};
    for (size_t i = 0; i < ARRAY_LEN(at); i++)
        add(h, (const char *)t->data + at[i], n);
}

/* What the weights are used for: config.json, or the whole header of a GGUF file. */
static void add_settings(XXH3_state_t *h, const char *model) {
    enum { LARGEST_CONFIG = 64 << 20 };
    char path[FOLDER_PATH_BYTES];
    bool is_gguf;
    struct gguf g = {0};
    struct error err; // of opening, who tells it
    if (gguf_find_model(model, path, &is_gguf, &err) != OK)
        return;
    if (is_gguf && gguf_open(path, &g, &err) == OK)
        add(h, g.map.bytes, g.data_begin);
    gguf_release(&g);
    if (is_gguf)
        return;
    bool is_inside = path_join(path, sizeof path, model, "config.json", NULL) == OK && access(path, R_OK) == 0;
    add_file(h, is_inside ? path : model, LARGEST_CONFIG);
}

static void add_weights(XXH3_state_t *h, const char *model) {
    enum { MOST = 4096 };
    struct checkpoint *c;
    struct error err;
    if (checkpoint_open(&c, model, &err) != OK)
        return; // dummy weights, which have none
    size_t n = checkpoint_count(c), step = n / MOST + 1;
    for (size_t i = 0; i < n; i++) {
        const struct stored_tensor *t = checkpoint_at(c, i);
        add_word(h, t->name);
        add(h, &t->dtype, sizeof t->dtype);
        add(h, t->shape, (size_t)t->rank * sizeof *t->shape);
        if (i % step == 0 && t->n_bytes > 0)
            add_sample(h, t);
    }
    checkpoint_free(c);
}

// ---- build ------------------------------------------------------------------------------------------------------

enum { LARGEST_PROGRAM = 512 << 20 };

/* The build ID of an object, which the linker takes from all of its bytes: reading those took longer than the rest of
 * a start. It is a note: three numbers, the name and the bytes, each filled up to a multiple of four. */
static bool add_build_id(XXH3_state_t *h, const struct dl_phdr_info *object) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const char *at = (const char *)(object->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz; // NOLINT: loaded
        if (part->p_type != PT_NOTE || part->p_align > 4)
            continue;
        for (const ElfW(Nhdr) * note; end - at > (ptrdiff_t)sizeof *note;) {
            note = (const void *)at;
            const char *name = at + sizeof *note, *bytes = name + (note->n_namesz + 3U) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == sizeof "GNU" && strcmp(name, "GNU") == 0) {
                add(h, bytes, note->n_descsz);
                return true;
            }
            at = bytes + (note->n_descsz + 3U) / 4 * 4;
        }
    }
    return false;
}

static const char own_program[] = "/proc/self/exe";

struct build {
    XXH3_state_t *h;
    bool has_program;
};

/* Of the program and of our libraries. One that was linked without a build ID is read whole. */
static int add_object(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size;
    struct build *b = context;
    bool is_program = (uintptr_t)object->dlpi_phdr == getauxval(AT_PHDR);
    if ((is_program || strstr(object->dlpi_name, "/libgyre-")) && !add_build_id(b->h, object))
        add_file(b->h, is_program ? own_program : object->dlpi_name, LARGEST_PROGRAM);
    b->has_program |= is_program;
    return 0;
}

static void add_build(XXH3_state_t *h) {
    add_word(h, GYRE_VERSION);
    struct build b = {h, false};
    dl_iterate_phdr(add_object, &b);
    if (!b.has_program) // under an emulator, or a loader that was called by name, no object may be told to be it
        add_file(h, own_program, LARGEST_PROGRAM);
}

// ---- numerics ---------------------------------------------------------------------------------------------------

/* The CPU backend chooses its kernels by these. */
static void add_processor(XXH3_state_t *h) {
    int has[] = {0, 0, 0};
#if defined(__x86_64__)
    has[0] = __builtin_cpu_supports("avx2") != 0;
    has[1] = __builtin_cpu_supports("avx512bw") != 0;
    has[2] = __builtin_cpu_supports("avx512vnni") != 0;
#elif defined(__aarch64__)
    has[2] = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    add(h, has, sizeof has);
}

static void add_gpus(XXH3_state_t *h) {
    static const char folder[] = "/proc/driver/nvidia/gpus";
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[512];
        struct buf text = {0};
        snprintf(path, sizeof path, "%s/%.200s/information", folder, e->d_name);
        const char *model = file_read(path, 4096, &text, NULL) == OK ? strstr(text.ptr, "Model:") : NULL;
        if (model)
            add(h, model, strcspn(model, "\n"));
        buf_release(&text);
        if (model)
            break; // the GPUs of a machine are alike
    }
    if (dir)
        closedir(dir);
}

static void add_numerics(XXH3_state_t *h, const struct engine_flags *f, const char *model) {
    const char *dtype = engine_flags_dtype(f, model);
    const char *const words[] = {f->device, dtype ? dtype : "auto", f->kv_cache_dtype, f->quantization, f->load_format};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        add_word(h, words[i]);
    if (strcmp(f->device, "cuda") == 0)
        add_gpus(h);
    else
        add_processor(h);
}

static uint64_t hash_of(const struct engine_flags *flags, const char *model, bool with_build) {
    XXH3_state_t *h = XXH3_createState();
    BUG_IF(!h);
    XXH3_64bits_reset(h);
    add_settings(h, model);
    if (strcmp(flags->load_format, "dummy") != 0 && strcmp(flags->device, "toy") != 0)
        add_weights(h, model);
    if (with_build)
        add_build(h);
    add_numerics(h, flags, model);
    uint64_t hash = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return hash;
}

void fingerprint_of(const struct engine_flags *flags, const char *model, char out[FINGERPRINT_BYTES]) {
    snprintf(out, FINGERPRINT_BYTES, "fp_%016llx", (unsigned long long)hash_of(flags, model, true));
}

uint64_t fingerprint_of_model(const struct engine_flags *flags, const char *model) {
    return hash_of(flags, model, false);
}
