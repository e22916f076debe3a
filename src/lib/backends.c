/* backends.c - see backends.h: the one place that names the backends. */
#include "lib/backends.h"

#include "backend/toy/toy.h"
#include "backend/xla/backend.h"
#include "base/file.h"
#include "core/plugin.h"
#include "lib/public.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char library[] = "libgyre-cuda.so";

/* The folder of libgyre.so if this is in it, otherwise that of the program; false where the system does not say
 * (without /proc). What the program was called as does not tell it, and a library of the current folder may be
 * anybody's. */
static bool own_folder(char out[PATH_BYTES]) {
    Dl_info here;
    char *file = dladdr(library, &here) && here.dli_fname && strstr(here.dli_fname, ".so")
                     ? realpath(here.dli_fname, NULL)
                     : NULL;
    ssize_t n = file ? snprintf(out, PATH_BYTES, "%s", file) : readlink("/proc/self/exe", out, PATH_BYTES - 1);
    out[n > 0 && n < PATH_BYTES ? n : 0] = '\0';
    free(file);
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

static bool find_library(char path[PATH_BYTES], char where[2 * PATH_BYTES]) {
    char own[PATH_BYTES], lib[PATH_BYTES + 16];
    const char *set = getenv("GYRE_PLUGINS");
    if (set && *set) { // there or nowhere: another one would be measured in its place
        snprintf(where, 2 * PATH_BYTES, "%.4000s (GYRE_PLUGINS)", set);
        return path_join(path, PATH_BYTES, set, library, NULL) == OK && file_exists(path);
    }
    if (!own_folder(own)) {
        snprintf(where, 2 * PATH_BYTES,
                 "any known place, as the folder of the program is not known without /proc; GYRE_PLUGINS names one");
        return false;
    }
    snprintf(lib, sizeof lib, "%s/../lib/gyre", own);
    const char *folders[] = {own, lib};
    for (size_t i = 0; i < ARRAY_LEN(folders); i++)
        if (path_join(path, PATH_BYTES, folders[i], library, NULL) == OK && file_exists(path))
            return true;
    snprintf(where, 2 * PATH_BYTES, "%.4000s and %.4000s", own, lib);
    return false;
}

/* A file that was cut short is mapped all the same, and kills whoever reads behind its end: so its table of sections,
 * which stands last, must be in it. */
static bool is_whole(const char *path) {
    Elf64_Ehdr head;
    uint64_t end;
    FILE *f = fopen(path, "rb");
    bool whole = f && fread(&head, sizeof head, 1, f) == 1 && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
                 !__builtin_add_overflow(head.e_shoff, (uint64_t)head.e_shnum * head.e_shentsize, &end) &&
                 end <= INT64_MAX && fseek(f, 0, SEEK_END) == 0 && (uint64_t)ftell(f) >= end;
    if (f)
        fclose(f);
    return whole;
}

static enum status load_cuda(const struct backend_ops **out, struct error *err) {
    char path[PATH_BYTES], where[2 * PATH_BYTES];
    if (!find_library(path, where))
        return fail(err, ERR_UNSUPPORTED,
                    "device cuda: there is no %s in %s; `make cuda` builds it where the CUDA toolkit is", library,
                    where);
    if (!is_whole(path))
        return fail(err, ERR_FORMAT,
                    "device cuda: %s is no library, or was cut short; build it again (make cuda) and copy it whole",
                    path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct plugin *p = handle ? dlsym(handle, "gyre_plugin") : NULL;
    if (!p)
        return fail(err, ERR_UNSUPPORTED,
                    "device cuda: %s; build it again (make cuda), with the CUDA libraries of this machine", dlerror());
    if (strcmp(p->version, GYRE_VERSION) != 0)
        return fail(err, ERR_UNSUPPORTED,
                    "device cuda: %s is of gyre %.40s, this is %s; build both together (make cuda)", path, p->version,
                    GYRE_VERSION);
    if (p->interface != GYRE_INTERFACE)
        return fail(err, ERR_UNSUPPORTED,
                    "device cuda: %s is of other sources of gyre %s than this; build both together (make cuda)", path,
                    GYRE_VERSION);
    *out = p->ops;
    return OK;
}

enum status backend_get(const char *name, const struct backend_ops **out, struct error *err) {
    static const struct backend_ops *const built_in[] = {&backend_cpu, &backend_xla, &backend_toy};
    for (size_t i = 0; i < ARRAY_LEN(built_in); i++)
        if (strcmp(built_in[i]->name, name) == 0) {
            *out = built_in[i];
            return OK;
        }
    if (strcmp(name, "cuda") != 0)
        return fail(err, ERR_ARG, "device %.40s: it is none of cpu, cuda and xla", name);
    return load_cuda(out, err);
}

int gyre_backend(const char *device, const struct backend_ops **out, struct gyre_error *err) {
    struct error e = {0};
    *out = NULL;
    return backend_get(device ? device : "", out, &e) == OK ? 0 : public_report(err, &e);
}
