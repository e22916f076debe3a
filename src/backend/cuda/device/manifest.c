/* manifest.c - see manifest.h.
 *
 * Device code lies in the loaded object as containers that begin with a magic number, one a .cu, each at a multiple of
 * 8 bytes in what is mapped for reading only. The linker keeps their order and bytes. */
#include "backend/cuda/device/manifest.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint32_t MAGIC = 0xBA55ED50;

enum status manifest_check_driver(const struct machine_found *m, struct error *err) {
    if (m->driver == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "--device cuda: this machine has no NVIDIA driver (libcuda.so.1); install one for CUDA %d, or use "
                    "--device cpu",
                    m->runtime / 1000);
    if (m->driver / 1000 < m->runtime / 1000)
        return fail(
            err, ERR_UNSUPPORTED,
            "--device cuda: the NVIDIA driver knows CUDA %d.%d and the kernels were built with %d.%d; renew the driver",
            m->driver / 1000, m->driver % 1000 / 10, m->runtime / 1000, m->runtime % 1000 / 10);
    return OK;
}

/* "sm_80, sm_90a" */
static const char *list_archs(const struct kernel_list *list, char *out, size_t n) {
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < list->n_archs && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%ssm_%d%s", i ? ", " : "", list->archs[i].number,
                               list->archs[i].number == 90 ? "a" : "");
    return out;
}

enum status manifest_check_card(const struct kernel_list *list, const struct machine_found *m,
                                const struct kernel_arch **out, struct error *err) {
    char archs[100];
    *out = NULL;
    for (int i = 0; i < list->n_archs; i++) {
        int number = list->archs[i].number;
        if (number / 10 == m->major && number % 10 <= m->minor)
            *out = &list->archs[i];
    }
    if (*out)
        return OK;
    if (m->card)
        return fail(err, ERR_UNSUPPORTED,
                    "--card: %s has compute capability %d.%d, and the CUDA library here was built for %s alone; build "
                    "it with %d among ARCHS (make cuda ARCHS=...)",
                    m->card, m->major, m->minor, list_archs(list, archs, sizeof archs), m->major * 10 + m->minor);
    return fail(err, ERR_UNSUPPORTED,
                "--device cuda: the %d kernels were built for %s (sm_90a is Hopper: H100, H200, GH200), GPU %d has "
                "compute capability %d.%d; choose another with CUDA_VISIBLE_DEVICES, build the library for it (make "
                "cuda ARCHS=...), or use --device cpu",
                list->n_names, list_archs(list, archs, sizeof archs), m->device, m->major, m->minor);
}

uint64_t manifest_hash(const struct kernel_list *list) {
    uint64_t hash = 0;
    for (int i = 0; i < list->n_files; i++) {
        uint64_t file[3] = {hash, list->files[i].n_bytes, list->files[i].hash};
        hash = XXH3_64bits(file, sizeof file);
    }
    return hash;
}

// ---- the device code in memory ----------------------------------------------------------------------------------

struct search {
    const struct kernel_list *list;
    bool *found; // [list->n_files]
    bool is_here;
};

static bool holds(const struct dl_phdr_info *object, const ElfW(Phdr) * part, const void *at) {
    uintptr_t begin = object->dlpi_addr + part->p_vaddr;
    return part->p_type == PT_LOAD && (uintptr_t)at >= begin && (uintptr_t)at - begin < part->p_memsz;
}

/* Marks the file whose bytes the container has. */
static void find_file(const struct search *s, const char *at, size_t n_left) {
    for (int i = 0; i < s->list->n_files; i++) {
        const struct kernel_file *f = &s->list->files[i];
        if (!s->found[i] && f->n_bytes <= n_left && XXH3_64bits(at, f->n_bytes) == f->hash) {
            s->found[i] = true;
            return;
        }
    }
}

static void search_part(const struct search *s, const char *at, size_t n_bytes) {
    for (size_t i = 0; i + sizeof MAGIC <= n_bytes; i += 8)
        if (memcmp(at + i, &MAGIC, sizeof MAGIC) == 0)
            find_file(s, at + i, n_bytes - i);
}

static int search_object(struct dl_phdr_info *object, size_t size, void *context) {
    struct search *s = context;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++)
        s->is_here = s->is_here || holds(object, &object->dlpi_phdr[i], s->list);
    for (int i = 0; s->is_here && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags == PF_R)
            search_part(s, (const char *)object->dlpi_addr + part->p_vaddr, part->p_filesz);
    }
    return s->is_here; // no other
}

enum status manifest_check_code(const struct kernel_list *list, struct error *err) {
    struct search s = {.list = list, .found = xcalloc((size_t)list->n_files + 1, sizeof *s.found)};
    Dl_info self = {0};
    int n = 0;
    dl_iterate_phdr(search_object, &s);
    while (n < list->n_files && s.found[n])
        n++;
    free(s.found);
    if (n == list->n_files)
        return OK;
    const struct kernel_file *f = &list->files[n];
    dladdr(list, &self);
    return fail(err, ERR_FORMAT,
                "--device cuda: %s does not hold the kernels of %s.cu that it was linked with (XXH3 %016llx, %d "
                "kernels): it is damaged or "
                "made of several builds; build it again (make cuda) and install it whole",
                self.dli_fname ? self.dli_fname : "libgyre-cuda.so", f->name, (unsigned long long)f->hash, f->n);
}
