/* launcher.c - see launcher.h. */
#include "main/flags/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct launcher {
    const char *size, *rank, *at_one, *all_at_one; // at_one: one_host if it is the size, or "1"
    const char *job, *step, *hosts;                // step: of the job, if it may have several; NULL: it is one
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "OMPI_MCA_ess_base_jobid",
     NULL, "OMPI_MCA_orte_hnp_uri"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "1", "SLURM_JOB_ID", "SLURM_STEP_ID",
     "SLURM_STEP_NODELIST"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", NULL, NULL, NULL, NULL},
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

static void read_job(char *(*get)(const char *), const struct launcher *l, char *out, size_t n) {
    const char *job = l->job ? get(l->job) : NULL, *step = l->step ? get(l->step) : NULL;
    if (job && (step || !l->step))
        snprintf(out, n, "%s.%s", job, step ? step : "");
    else if (get("PMIX_NAMESPACE"))
        snprintf(out, n, "%s", get("PMIX_NAMESPACE"));
}

enum status launcher_read(char *(*get)(const char *name), struct launched *out, struct error *err) {
    const struct launcher *l = launchers, *end = launchers + ARRAY_LEN(launchers);
    *out = (struct launched){0};
    while (l < end && !get(l->size))
        l++;
    if (l == end)
        return OK;
    out->by = l;
    out->size = l->size;
    TRY(read_int(get, l->size, &out->n, err));
    TRY(read_int(get, l->rank, &out->rank, err));
    if (out->rank >= out->n)
        return fail(err, ERR_ARG, "%s: the launcher says process %d of %d", l->rank, out->rank, out->n);
    read_job(get, l, out->job, sizeof out->job);
    return OK;
}

// ---- where process 0 is -----------------------------------------------------------------------------------------

/* "job.0;tcp://10.0.0.1,10.1.0.1:4711;tcp6://..." becomes the first address. */
static void host_of_uri(const char *uri, char *out, size_t n) {
    const char *at = strstr(uri, "tcp://");
    if (at)
        snprintf(out, n, "%.*s", (int)strcspn(at + 6, ",:;"), at + 6);
}

/* "node[01-04,07],other" becomes node01, "rack[1-2]n[3,5]-ib" rack1n3-ib: the first of each bracket. */
static enum status first_of_list(const char *list, char *out, size_t n, struct error *err) {
    size_t len = 0;
    for (const char *c = list; *c && *c != ',';) {
        bool is_range = *c == '[';
        size_t take = strcspn(c + is_range, is_range ? "-,]" : "[,");
        const char *end = is_range ? strchr(c, ']') : c + take;
        if (!end || len + take >= n)
            return fail(err, ERR_ARG, "the launcher's list of hosts \"%.80s\" cannot be read: set MASTER_ADDR", list);
        memcpy(out + len, c + is_range, take);
        len += take;
        c = end + is_range;
    }
    out[len] = '\0';
    return OK;
}

static enum status find_host(char *(*get)(const char *), const struct launcher *l, char *host, size_t n,
                             struct error *err) {
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
        TRY(first_of_list(hosts, host, n, err));
    return host[0] ? OK
                   : fail(err, ERR_ARG,
                          "the launcher does not say where process 0 is: --master-addr HOST:PORT, or MASTER_ADDR in "
                          "the environment, does");
}

static enum status find_port(char *(*get)(const char *), const char *job, int *out, struct error *err) {
    uint32_t h = 2166136261u; // FNV-1a
    const char *given = get("MASTER_PORT");
    if (!given && !job[0])
        return fail(err, ERR_ARG,
                    "the launcher does not name the job, from which a port would be made: set MASTER_PORT, the same "
                    "for all processes of the job");
    for (const char *c = job; *c; c++)
        h = (h ^ (unsigned char)*c) * 16777619u;
    *out = 20000 + (int)(h % 12000);
    if (given && (read_int(get, "MASTER_PORT", out, err) != OK || *out < 1 || *out > 65535))
        return fail(err, ERR_ARG, "MASTER_PORT: \"%.40s\" is no port, which is a number of 1 to 65535", given);
    return OK;
}

enum status launcher_address(char *(*get)(const char *name), const struct launched *launched, char out[static 300],
                             struct error *err) {
    char host[256];
    int port;
    TRY(find_host(get, launched->by, host, sizeof host, err));
    TRY(find_port(get, launched->job, &port, err));
    snprintf(out, 300, strchr(host, ':') && host[0] != '[' ? "[%s]:%d" : "%s:%d", host, port);
    return OK;
}
