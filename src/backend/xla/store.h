/* store.h - executables on disk, so that a start does not compile again what an earlier one did.
 *
 * A file a program, called by the hash of all that decides what it is: the module's text, the compile options, the
 * plugin (path, size, time, versions), the platform, the kind of device, what the environment tells compilers, and of
 * a CPU its features. What a file holds is code: so the folder, which is opened once, and each file that is loaded are
 * the user's, no links, and nobody else can write them; and a file whose contents do not have the hash at its beginning
 * is not loaded. Anything wrong is as if there were none.
 *
 * The folder: device option cache, else $XDG_CACHE_HOME/gyre/xla, else ~/.cache/gyre/xla. It keeps the STORE_MOST
 * programs that were used last. */
#pragma once

#include "backend/xla/pjrt/pjrt_run.h"

enum { STORE_MOST = 1024, STORE_NAME_BYTES = 65 };

/* A descriptor of the folder, which is made where there is none; -1: there is none that is safe, and why. `given`: NULL
 * for the usual place; "0" for none. */
int store_open(const char *given, char *why, size_t why_bytes);
void store_close(int folder); // -1 is fine

/* The file's name of a program for the devices that the options say. */
void store_name(const struct pjrt *p, int device, struct str text, struct str options, char out[STORE_NAME_BYTES]);

bool store_load(int folder, const char *name, const struct pjrt *p, struct pjrt_loaded **out);
void store_save(int folder, const char *name, const struct pjrt *p, struct pjrt_loaded *program);
