/* test_launcher.c - what launchers of processes say in the environment: number, rank and where process 0 is. */
#include "check.h"

#include "main/flags/launcher.h"

#include <string.h>

static const char *const *environment; // name, value, name, value, NULL

static char *get(const char *name) {
    for (const char *const *e = environment; e && *e; e += 2)
        if (strcmp(*e, name) == 0)
            return (char *)(uintptr_t)e[1];
    return NULL;
}

static const struct case_of {
    const char *const *says;
    int n, rank;
    const char *host; // what the address begins with
    bool has_port;    // it is this address whole
} cases[] = {
    {(const char *const[]){"HOME", "/", NULL}, 0, 0, "", true},
    {(const char *const[]){"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_LOCAL_SIZE", "4",
                           NULL},
     4, 3, "127.0.0.1:", false},
    {(const char *const[]){"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
                           "OMPI_MCA_orte_hnp_uri", "1866.0;tcp://10.0.0.7,10.1.0.7:37479;tcp6://[fd00::2]:52705",
                           "MASTER_PORT", "9000", NULL},
     4, 1, "10.0.0.7:9000", true},
    {(const char *const[]){"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_LOCAL_SIZE", "1",
                           "OMPI_MCA_orte_hnp_uri", "1866.0;tcp://10.0.0.7:37479", "MASTER_ADDR", "head", "MASTER_PORT",
                           "1", NULL},
     2, 0, "head:1", true},
    {(const char *const[]){"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_LOCAL_SIZE", "1",
                           "MASTER_ADDR", "fd00::2", "MASTER_PORT", "1", NULL},
     2, 0, "[fd00::2]:1", true},
    {(const char *const[]){"SLURM_STEP_NUM_TASKS", "3", "SLURM_PROCID", "2", "SLURM_STEP_NUM_NODES", "3",
                           "SLURM_STEP_NODELIST", "node[01-02,07]", "SLURM_JOB_ID", "5", NULL},
     3, 2, "node01:", false},
    {(const char *const[]){"SLURM_STEP_NUM_TASKS", "3", "SLURM_PROCID", "2", "SLURM_STEP_NUM_NODES", "3",
                           "SLURM_STEP_NODELIST", "gpu3,gpu5,gpu9", "MASTER_PORT", "7", NULL},
     3, 2, "gpu3:7", true},
    {(const char *const[]){"SLURM_STEP_NUM_TASKS", "2", "SLURM_PROCID", "1", "SLURM_STEP_NUM_NODES", "1", NULL}, 2, 1,
     "127.0.0.1:", false},
    {(const char *const[]){"SLURM_NTASKS", "2", "SLURM_PROCID", "0", NULL}, 0, 0, "", true}, // a batch script itself
    {(const char *const[]){"PMI_SIZE", "2", "PMI_RANK", "1", "MPI_LOCALNRANKS", "2", NULL}, 2, 1, "127.0.0.1:", false},
    {(const char *const[]){"PMI_SIZE", "2", "PMI_RANK", "1", NULL}, 2, 1, "", true},
};

static void each_launcher_is_read(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct launched l;
        struct error err;
        environment = cases[i].says;
        EXPECT_OK(launcher_read(get, &l, &err), err);
        EXPECT_EQ(l.n, cases[i].n);
        EXPECT_EQ(l.rank, cases[i].rank);
        size_t n = strlen(cases[i].host);
        if (strncmp(l.address, cases[i].host, n) != 0 || (cases[i].has_port && l.address[n]))
            fail_msg("case %zu: %s, not %s", i, l.address, cases[i].host);
    }
}

/* Processes of one job agree on the port, and jobs beside each other on different ones. */
static void jobs_have_ports_of_their_own(void **state) {
    (void)state;
    struct launched a, b, c;
    struct error err;
    const char *says[] = {"OMPI_COMM_WORLD_SIZE",
                          "2",
                          "OMPI_COMM_WORLD_RANK",
                          "0",
                          "OMPI_COMM_WORLD_LOCAL_SIZE",
                          "2",
                          "OMPI_MCA_ess_base_jobid",
                          "4711",
                          NULL};
    environment = says;
    EXPECT_OK(launcher_read(get, &a, &err), err);
    says[3] = "1";
    EXPECT_OK(launcher_read(get, &b, &err), err);
    says[7] = "4712";
    EXPECT_OK(launcher_read(get, &c, &err), err);
    EXPECT(strcmp(a.address, b.address) == 0 && strcmp(a.address, c.address) != 0);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"2", "2"},  {"2", "x"},           {"", "0"},
                                         {"2", "-1"}, {"99999999999", "0"}, {"2", "1 "}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct launched l;
        struct error err;
        environment = (const char *const[]){"OMPI_COMM_WORLD_SIZE", bad[i][0], "OMPI_COMM_WORLD_RANK", bad[i][1], NULL};
        EXPECT(launcher_read(get, &l, &err) == ERR_ARG && strstr(err.text, "OMPI_COMM_WORLD_"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_launcher_is_read),
        cmocka_unit_test(jobs_have_ports_of_their_own),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
