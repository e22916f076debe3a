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

#define OMPI(n, rank, here) "OMPI_COMM_WORLD_SIZE", n, "OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_LOCAL_SIZE", here
#define OMPI_4(n, rank, here, job) OMPI(n, rank, here), "OMPI_MCA_ess_base_jobid", job, "PMIX_NAMESPACE", job
#define SLURM(n, rank, hosts) "SLURM_STEP_NUM_TASKS", n, "SLURM_PROCID", rank, "SLURM_STEP_NUM_NODES", hosts
#define SLURM_LIST(list) SLURM("3", "2", "3"), "SLURM_STEP_NODELIST", list, "MASTER_PORT", "7"
#define PMI(n, rank) "PMI_SIZE", n, "PMI_RANK", rank, "MPI_LOCALNRANKS", n
#define SAYS(...) \
    (const char *const[]) { __VA_ARGS__, NULL }

static const struct case_of {
    const char *const *says;
    int n, rank;
    const char *address; // what it begins with where that ends with ':', and else is
} cases[] = {
    {SAYS(OMPI_4("4", "3", "4", "1")), 4, 3, "127.0.0.1:"},
    {SAYS(OMPI_4("4", "1", "2", "1"), "OMPI_MCA_orte_hnp_uri",
          "1866.0;tcp://10.0.0.7,10.1.0.7:37479;tcp6://[fd00::2]:52705", "MASTER_PORT", "9000"),
     4, 1, "10.0.0.7:9000"},
    {SAYS(OMPI_4("2", "0", "1", "1"), "OMPI_MCA_orte_hnp_uri", "1866.0;tcp://10.0.0.7:37479", "MASTER_ADDR", "head",
          "MASTER_PORT", "1"),
     2, 0, "head:1"},
    {SAYS(OMPI("2", "0", "1"), "MASTER_ADDR", "fd00::2", "MASTER_PORT", "65535"), 2, 0, "[fd00::2]:65535"},
    {SAYS(OMPI("2", "1", "2"), "PMIX_NAMESPACE", "prterun-a-77@1"), 2, 1, "127.0.0.1:"}, // Open MPI 5
    {SAYS(SLURM("3", "2", "3"), "SLURM_STEP_NODELIST", "node[01-02,07]", "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0"), 3,
     2, "node01:"},
    {SAYS(SLURM_LIST("gpu3,gpu5,gpu9")), 3, 2, "gpu3:7"},
    {SAYS(SLURM_LIST("cn[01-02]-ib,x[1-2]")), 3, 2, "cn01-ib:7"},
    {SAYS(SLURM_LIST("rack[1-2]n[4,6-8]")), 3, 2, "rack1n4:7"},
    {SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0"), 2, 1, "127.0.0.1:"},
    {SAYS(PMI("2", "1"), "MASTER_PORT", "7"), 2, 1, "127.0.0.1:7"},
    {SAYS(PMI("2", "1"), "PMIX_NAMESPACE", "a"), 2, 1, "127.0.0.1:"},
};

static void each_launcher_is_read(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct launched l;
        struct error err;
        char address[300];
        environment = cases[i].says;
        EXPECT_OK(launcher_read(get, &l, &err), err);
        EXPECT_EQ(l.n, cases[i].n);
        EXPECT_EQ(l.rank, cases[i].rank);
        EXPECT(strcmp(l.size, environment[0]) == 0);
        EXPECT_OK(launcher_address(get, &l, address, &err), err);
        size_t n = strlen(cases[i].address);
        if (strncmp(address, cases[i].address, n) != 0 || (cases[i].address[n - 1] != ':' && address[n]))
            fail_msg("case %zu: %s, not %s", i, address, cases[i].address);
    }
}

static const char *const *const none[] = {SAYS("HOME", "/"), // and a batch script itself
                                          SAYS("SLURM_NTASKS", "2", "SLURM_PROCID", "0", "SLURM_JOB_ID", "5")};

static void nobody_is_no_launcher(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        struct launched l;
        struct error err;
        environment = none[i];
        EXPECT_OK(launcher_read(get, &l, &err), err);
        EXPECT_EQ(l.n, 0);
    }
}

static const char *const *const jobs[][3] = {
    // the same job, the same job, another
    {SAYS(OMPI_4("2", "0", "2", "4711")), SAYS(OMPI_4("2", "1", "2", "4711")), SAYS(OMPI_4("2", "1", "2", "4712"))},
    {SAYS(OMPI("2", "0", "2"), "PMIX_NAMESPACE", "prterun-a-77@1", "PMIX_RANK", "0"),
     SAYS(OMPI("2", "1", "2"), "PMIX_NAMESPACE", "prterun-a-77@1", "PMIX_RANK", "1"),
     SAYS(OMPI("2", "1", "2"), "PMIX_NAMESPACE", "prterun-a-78@1", "PMIX_RANK", "1")},
    {SAYS(SLURM("2", "0", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0"),
     SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0"),
     SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "1")},
    {SAYS(SLURM("2", "0", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "11"),
     SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "5", "SLURM_STEP_ID", "11"),
     SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "51", "SLURM_STEP_ID", "1")},
};

/* Processes of one job agree on name and port, and jobs beside each other, or steps of one, have different ones. */
static void jobs_have_ports_of_their_own(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(jobs); i++) {
        struct launched l[3];
        struct error err;
        char at[3][300];
        for (int k = 0; k < 3; k++) {
            environment = jobs[i][k];
            EXPECT_OK(launcher_read(get, &l[k], &err), err);
            EXPECT_OK(launcher_address(get, &l[k], at[k], &err), err);
        }
        EXPECT(strcmp(l[0].job, l[1].job) == 0 && strcmp(l[0].job, l[2].job) != 0);
        EXPECT(strcmp(at[0], at[1]) == 0 && strcmp(at[0], at[2]) != 0);
    }
}

static const struct {
    const char *const *says;
    const char *sentence;
} lacking[] = {
    // MPICH: PMI_ID is another in each process
    {SAYS(PMI("2", "1"), "PMI_ID", "1"), "set MASTER_PORT"},
    {SAYS(OMPI("2", "1", "2")), "set MASTER_PORT"},
    {SAYS(SLURM("2", "1", "1"), "SLURM_JOB_ID", "5"), "set MASTER_PORT"},
    {SAYS("PMI_SIZE", "2", "PMI_RANK", "1", "MASTER_PORT", "7"), "MASTER_ADDR in the environment"},
    {SAYS(OMPI("2", "1", "1"), "PMIX_NAMESPACE", "a"), "MASTER_ADDR in the environment"},
    {SAYS(SLURM_LIST("node[01-02")), "set MASTER_ADDR"},
    {SAYS(SLURM_LIST("[")), "set MASTER_ADDR"},
    {SAYS(PMI("2", "1"), "MASTER_PORT", "65536"), "MASTER_PORT: \"65536\" is no port"},
    {SAYS(PMI("2", "1"), "MASTER_PORT", "0"), "is no port"},
    {SAYS(PMI("2", "1"), "MASTER_PORT", "7x"), "is no port"},
};

static void no_address_is_guessed(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lacking); i++) {
        struct launched l;
        struct error err;
        char address[300];
        environment = lacking[i].says;
        EXPECT_OK(launcher_read(get, &l, &err), err);
        if (launcher_address(get, &l, address, &err) != ERR_ARG || !strstr(err.text, lacking[i].sentence))
            fail_msg("case %zu: not \"%s\"", i, lacking[i].sentence);
    }
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
        cmocka_unit_test(each_launcher_is_read),        cmocka_unit_test(nobody_is_no_launcher),
        cmocka_unit_test(jobs_have_ports_of_their_own), cmocka_unit_test(no_address_is_guessed),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
