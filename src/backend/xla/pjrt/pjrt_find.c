/* pjrt_find.c - see pjrt.h: where a plugin is, and pjrt_env.h: what it wants to find in the environment. */
#include "backend/xla/pjrt/pjrt.h"
#include "backend/xla/pjrt/pjrt_env.h"

#include "base/file.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below a site-packages folder. */
struct package {
    const char *file;
    bool (*is_for)(void); // this machine; NULL: any
};

static const struct package packages[] = {
    {"libtpu/libtpu.so", machine_has_tpu},
    {"jax_plugins/xla_cuda1[0-9]/xla_cuda_plugin.so", machine_has_gpu},
    {"xla_plugins/xla_cuda1[0-9]_pjrt/xla_gpu_pjrt.so", machine_has_gpu},
    {"lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", NULL},
    {"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", NULL},
};

/* Patterns of site-packages folders behind a folder that a variable names, or as they are. */
struct place {
    const char *variable, *folders;
};

static const struct place places[] = {
    {"VIRTUAL_ENV", "/lib/python3*/site-packages"},  {"HOME", "/.local/lib/python3*/site-packages"},
    {NULL, "/usr/local/lib/python3*/dist-packages"}, {NULL, "/usr/local/lib/python3*/site-packages"},
    {NULL, "/usr/lib/python3*/site-packages"},       {NULL, "/usr/lib/python3/dist-packages"},
};

/* The folder above that of the python3 that a shell would start, a virtual environment's without its being activated;
 * "" where there is none. */
static void find_python(char prefix[PJRT_PATH_BYTES]) {
    const char *at = getenv("PATH"), *end;
    char path[PJRT_PATH_BYTES];
    for (prefix[0] = 0; at && *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ":");
        int n = (int)(end - at);
        while (n > 1 && at[n - 1] == '/')
            n--;
        if (n == 0 || n >= PJRT_PATH_BYTES - 16)
            continue;
        snprintf(path, sizeof path, "%.*s/python3", n, at);
        if (access(path, X_OK) == 0) { // of a folder that is no bin, which starts another one, nothing is known
            snprintf(prefix, PJRT_PATH_BYTES, "%.*s", n > 4 && strncmp(at + n - 4, "/bin", 4) == 0 ? n - 4 : 0, at);
            return;
        }
    }
}

/* The last that matches: of Python 3.11 and 3.12 the newer one. */
static bool first_match(const char *pattern, char path[PJRT_PATH_BYTES]) {
    glob_t found;
    bool is_there = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 0 &&
                    strlen(found.gl_pathv[found.gl_pathc - 1]) < PJRT_PATH_BYTES;
    if (is_there)
        snprintf(path, PJRT_PATH_BYTES, "%s", found.gl_pathv[found.gl_pathc - 1]);
    globfree(&found);
    return is_there;
}

static bool find_in(const char *before, const char *folders, const char *file, char path[PJRT_PATH_BYTES]) {
    char pattern[PJRT_PATH_BYTES];
    int n = snprintf(pattern, sizeof pattern, "%s%s/%s", before, folders, file);
    return n > 0 && n < PJRT_PATH_BYTES && first_match(pattern, path);
}

static bool find_package(const struct package *package, char path[PJRT_PATH_BYTES]) {
    char python[PJRT_PATH_BYTES];
    if (package->is_for && !package->is_for())
        return false;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const char *before = places[i].variable ? getenv(places[i].variable) : "";
        if (before && (!places[i].variable || *before) && find_in(before, places[i].folders, package->file, path))
            return true;
    }
    find_python(python);
    return python[0] && find_in(python, "/lib/python3*/site-packages", package->file, path);
}

enum status pjrt_find(const char *given, char path[PJRT_PATH_BYTES], struct error *err) {
    static const char *const variables[] = {"GYRE_XLA_PLUGIN", "TPU_LIBRARY_PATH"};
    const char *named = "--xla-plugin";
    for (size_t i = 0; (!given || !*given) && i < ARRAY_LEN(variables); i++) {
        given = getenv(variables[i]);
        named = variables[i];
    }
    if (given && *given) { // there or nowhere: another one would be another device
        if (strlen(given) >= PJRT_PATH_BYTES || !file_exists(given))
            return fail(err, ERR_ARG, "device xla: %.200s (%s): there is no such file", given, named);
        snprintf(path, PJRT_PATH_BYTES, "%s", given);
        return OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(packages); i++)
        if (find_package(&packages[i], path))
            return OK;
    return fail(err, ERR_UNSUPPORTED,
                "device xla: no PJRT plugin in $VIRTUAL_ENV, ~/.local, the system's Python packages or those of the "
                "python3 in $PATH; pip install libtpu, jax-cuda13-pjrt or lammps-jax-pjrt-cpu brings one, and "
                "--xla-plugin or GYRE_XLA_PLUGIN names any other");
}

/* ---- the machine ---- */

static bool reads_as(const char *path, const char *const *texts) {
    char text[16] = "";
    FILE *f = fopen(path, "r");
    bool read = f && fgets(text, sizeof text, f);
    if (f)
        fclose(f);
    for (; read && *texts; texts++)
        if (strncmp(text, *texts, strlen(*texts)) == 0)
            return true;
    return false;
}

/* Google's chips: v2 and v3, v4, v5p, v5e, v6e, 7x. Its network cards have the same vendor. */
bool machine_has_tpu(void) {
    static const char *const vendor[] = {"0x1ae0", NULL};
    static const char *const chips[] = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", NULL};
    glob_t found;
    bool has = false;
    if (glob("/sys/bus/pci/devices/*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !has; i++) {
            char of_vendor[512], of_device[512];
            snprintf(of_vendor, sizeof of_vendor, "%.480s/vendor", found.gl_pathv[i]);
            snprintf(of_device, sizeof of_device, "%.480s/device", found.gl_pathv[i]);
            has = reads_as(of_vendor, vendor) && reads_as(of_device, chips);
        }
    globfree(&found);
    return has;
}

bool machine_has_gpu(void) { return access("/dev/nvidia0", F_OK) == 0; }

/* Where NVIDIA's wheels lie beside a plugin in site-packages/jax_plugins/xla_cuda13/. */
static bool find_cuda_data(const char *path, char out[PJRT_PATH_BYTES]) {
    char pattern[PJRT_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    int n = slash ? snprintf(pattern, sizeof pattern, "%.*s/../../nvidia/cu1[0-9]", (int)(slash - path), path) : -1;
    return n > 0 && n < PJRT_PATH_BYTES && first_match(pattern, out);
}

void pjrt_prepare_environment(const char *path) {
    char folder[PJRT_PATH_BYTES], flags[2 * PJRT_PATH_BYTES];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *now = getenv("XLA_FLAGS");
    setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0); // XLA's own: errors, and neither news nor warnings of its compilers
    if (strcmp(name, "libtpu.so") == 0 && !machine_has_tpu()) {
        setenv("TPU_SKIP_MDS_QUERY", "1", 0);
        setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1", 0); // who only compiles owns no chips
    }
    if (strstr(name, "cuda") && !(now && strstr(now, "xla_gpu_cuda_data_dir")) && find_cuda_data(path, folder) &&
        snprintf(flags, sizeof flags, "%s --xla_gpu_cuda_data_dir=%s", now ? now : "", folder) < (int)sizeof flags)
        setenv("XLA_FLAGS", flags, 1);
}
