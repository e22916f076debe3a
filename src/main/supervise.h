/* supervise.h - what the main thread of a server does: signals, a new file of keys, and an eye on the engine. */
#pragma once

#include "api/api.h"

/* Before the server is opened: its threads inherit a mask, so that only the main thread sees the signals. Until the
 * load ends nothing is served that could end well, and a signal to end ends the process. */
void supervise_load_begins(void);
void supervise_load_ends(void);

/* Returns when the server shall drain and close, with the exit code: 0 after SIGTERM or SIGINT, 1 after the devices
 * of all engines failed. From then on a second signal ends the draining. SIGHUP reads key_file again (NULL: it is
 * ignored). Told on stderr are steps that hang, once when they begin to and once when they end, and once each engine
 * that fails, or works again. */
int supervise(struct api *api, const char *key_file, int64_t drain_seconds);

/* From here on signals change nothing. After api_stop, before api_free: the second signal's handler uses the server. */
void supervise_end(void);
