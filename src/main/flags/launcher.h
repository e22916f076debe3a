/* launcher.h - what a launcher of processes says in the environment of each: MPI's (Open MPI, MPICH and others with
 * PMI), Slurm's srun. So that `mpirun -n 2 gyre serve MODEL` needs no flags.
 *
 *                number of processes    this one              all on one host       host 0      the job's name
 *     Open MPI   OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_RANK  ..._LOCAL_SIZE        mpirun's    OMPI_MCA_ess_base_jobid
 *     srun       SLURM_STEP_NUM_TASKS   SLURM_PROCID          SLURM_STEP_NUM_NODES  first of    SLURM_JOB_ID and
 *                                                                                  ..NODELIST  SLURM_STEP_ID
 *     PMI        PMI_SIZE               PMI_RANK              MPI_LOCALNRANKS       not told    not told (MPICH)
 *
 * Where its own variables do not name the job, PMIX_NAMESPACE does (Open MPI 5, PMIx): it is the same in all processes
 * of a job, their ranks are elsewhere. Open MPI tells mpirun's host up to version 4. PMI_ID is no name of a job: MPICH
 * numbers processes by it. */
#pragma once

#include "base/status.h"

struct launched {
    const struct launcher *by;
    const char *size; // the variable that says n
    int n, rank;      // n 0: nobody launched this
    char job[256];    // its name, the same in all processes; empty: it is not told
};

/* Tests give a getenv of their own. ERR_ARG: what the environment says cannot be. */
enum status launcher_read(char *(*get)(const char *name), struct launched *out, struct error *err);

/* Of process 0, "host:port". MASTER_ADDR and MASTER_PORT come before what the launcher says. Without MASTER_PORT the
 * port is between 20000 and 31999, made of the job's name, so that jobs of one host hardly meet. ERR_ARG: host or port
 * are not told, or cannot be. */
enum status launcher_address(char *(*get)(const char *name), const struct launched *launched, char out[static 300],
                             struct error *err);
