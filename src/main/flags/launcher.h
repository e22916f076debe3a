/* launcher.h - what a launcher of processes says in the environment of each: MPI's (Open MPI, MPICH and others with
 * PMI), Slurm's srun. So that `mpirun -n 2 gyre serve MODEL` needs no flags.
 *
 *                      number of processes      this one               all on one host          host 0
 *     Open MPI         OMPI_COMM_WORLD_SIZE     OMPI_COMM_WORLD_RANK   ..._LOCAL_SIZE           mpirun's
 *     srun             SLURM_STEP_NUM_TASKS     SLURM_PROCID           SLURM_STEP_NUM_NODES     first of
 *                                                                                               SLURM_STEP_NODELIST
 *     PMI (MPICH)      PMI_SIZE                 PMI_RANK               MPI_LOCALNRANKS          not told
 *
 * MASTER_ADDR, and MASTER_PORT, come before what is told of host 0. Without MASTER_PORT the port is between 20000 and
 * 31999, made of the job's name, so that jobs of one host hardly meet. */
#pragma once

#include "base/status.h"

struct launched {
    int n, rank;       // n 0: nobody launched this
    char address[300]; // of process 0, "host:port"; empty: it is not known
};

/* Tests give a getenv of their own. ERR_ARG: what the environment says cannot be. */
enum status launcher_read(char *(*get)(const char *name), struct launched *out, struct error *err);
