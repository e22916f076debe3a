/* pjrt_env.h - what plugins read of the environment when they are loaded. */
#pragma once

#include "base/status.h"

bool machine_has_tpu(void);
bool machine_has_gpu(void); // NVIDIA's

/* Sets, where the user did not:
 *
 *     TF_CPP_MIN_LOG_LEVEL            XLA logs errors alone
 *     TPU_SKIP_MDS_QUERY              libtpu without a TPU: else it waits for Google's metadata server
 *     ALLOW_MULTIPLE_LIBTPU_LOAD      likewise: who only compiles owns no chips
 *     XLA_FLAGS, cuda_data_dir        a CUDA plugin in site-packages: where NVIDIA's wheels beside it are */
void pjrt_prepare_environment(const char *path);
