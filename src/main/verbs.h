/* verbs.h - one function a verb; each lives in a file of its name. */
#pragma once

#define VERB(name) int verb_##name(int argc, char **argv);
#include "main/verbs.def"
#undef VERB
