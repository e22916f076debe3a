/* interrupt.h - Ctrl-C as a wish to stop what is being done, not the program. */
#pragma once

#include <stdbool.h>

/* From now on SIGINT only sets a flag, and interrupts reads that wait. */
void interrupt_catch(void);

/* SIGINT ends the program again. */
void interrupt_release(void);

/* Whether SIGINT came since the last call. */
bool interrupt_taken(void);
