/* launcher.c - see launcher.h. */
#include "main/flags/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct launcher {
    const char *size, *rank, *at_one, *all_at_one; // at_one: one_host if it is the size, or "1"
    const char *job, *hosts;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "OMPI_MCA_ess_base_jobid",
     "OMPI_MCA_orte_hnp_uri"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "1", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", NULL, "PMI_ID", NULL},
};

static enum status read_int(char *(*get)(const char *), const char *name, int *out, struct error *err) {
    const char *text = get(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    if (!text || end == text || *end || n < 0 || n > 1 << 20)
        return fail(err, ERR_ARG, "%s: the launcher says \"%.40s\", which is no number of a process", name,
                    text ? text : "");
    *out = (int)n;
    return OK;
}

/* "job.0;tcp://10.0.0.1,10.1.0.1:4711;tcp6://..." becomes the first address. */
static void host_of_uri(const char *uri, char *out, size_t n) {
    const char *at = strstr(uri, "tcp://");
    if (at)
        snprintf(out, n, "%.*s", (int)strcspn(at + 6, ",:;"), at + 6);
}

/* "node[01-04,07],other" becomes node01. */
static void first_of_list(const char *list, char *out, size_t n) {
    size_t stem = strcspn(list, "[,");
    const char *number = list[stem] == '[' ? list + stem + 1 : "";
    snprintf(out, n, "%.*s%.*s", (int)stem, list, (int)strcspn(number, "-,]"), number);
}

static int port_of_job(const char *job) {
    uint32_t h = 2166136261u; // FNV-1a
    for (const char *c = job ? job : ""; *c; c++)
        h = (h ^ (unsigned char)*c) * 16777619u;
    return 20000 + (int)(h % 12000);
}

static void find_host(char *(*get)(const char *), const struct launcher *l, char *host, size_t n) {
    const char *given = get("MASTER_ADDR"), *here = get(l->at_one), *hosts = l->hosts ? get(l->hosts) : NULL;
    const char *all = l->all_at_one ? l->all_at_one : get(l->size);
    host[0] = '\0';
    if (given)
        snprintf(host, n, "%s", given);
    else if (here && strcmp(here, all) == 0)
        snprintf(host, n, "127.0.0.1");
    else if (hosts && strstr(hosts, "://"))
        host_of_uri(hosts, host, n);
    else if (hosts)
        first_of_list(hosts, host, n);
}

enum status launcher_read(char *(*get)(const char *name), struct launched *out, struct error *err) {
    const struct launcher *l = launchers, *end = launchers + ARRAY_LEN(launchers);
    char host[256];
    int port;
    *out = (struct launched){0};
    while (l < end && !get(l->size))
        l++;
    if (l == end)
        return OK;
    TRY(read_int(get, l->size, &out->n, err));
    TRY(read_int(get, l->rank, &out->rank, err));
    if (out->rank >= out->n)
        return fail(err, ERR_ARG, "%s: the launcher says process %d of %d", l->rank, out->rank, out->n);
    port = port_of_job(get(l->job));
    if (get("MASTER_PORT"))
        TRY(read_int(get, "MASTER_PORT", &port, err));
    find_host(get, l, host, sizeof host);
    if (host[0])
        snprintf(out->address, sizeof out->address, strchr(host, ':') && host[0] != '[' ? "[%s]:%d" : "%s:%d", host,
                 port);
    return OK;
}
