/* backends.h - the devices that this build can compute on. */
#pragma once

#include "core/backend.h"

/* What --device may name, as a flag's choices: "cpu", and "toy", which computes nothing (backend/toy/toy.h). */
#define BACKEND_NAMES "cpu|toy"

/* The backend of that name, which must be one of BACKEND_NAMES. */
const struct backend_ops *backend_get(const char *name);
