/* pjrt_env.h - what plugins read of the environment when they are loaded. */
#pragma once

#include "base/status.h"

bool machine_has_tpu(void);
bool machine_has_gpu(void); // NVIDIA's

/* Sets, where the user did not: that XLA logs errors alone (TF_CPP_MIN_LOG_LEVEL); for libtpu on a machine without a
 * TPU TPU_SKIP_MDS_QUERY, as it would wait for Google's metadata server; for a CUDA plugin in a site-packages folder
 * where NVIDIA's wheels beside it are, in XLA_FLAGS. */
void pjrt_prepare_environment(const char *path);
