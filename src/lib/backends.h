/* backends.h - the devices that gyre can compute on. */
#pragma once

#include "core/backend.h"

/* What --device may name, as a flag's choices: "cpu"; "cuda", which is in libgyre-cuda.so; "xla", which loads a PJRT
 * plugin (backend/xla/pjrt/pjrt.h); and "toy", which computes nothing (backend/toy/toy.h). */
#define BACKEND_NAMES "cpu|cuda|xla|toy"

/* The backend of that name. A library is looked for in $GYRE_PLUGINS and nowhere else if that is set, otherwise beside
 * the program (or libgyre.so, where that asks) and in ../lib/gyre from there; ERR_UNSUPPORTED says where it was not
 * found, what it lacks, or that it is another version's. It stays loaded. */
enum status backend_get(const char *name, const struct backend_ops **out, struct error *err);
