/* cpu_watch.c - tells whoever watches what an op is about to read (load_options.watch). */
#include "backend/cpu/cpu.h"

void cpu_tell_watch(const struct call *c) {
    const struct op_watch *watch = c->loaded->watch;
    struct op_input in[OP_MAX_IN];
    if (!watch)
        return;
    for (int i = 0; i < OP_MAX_IN; i++)
        in[i] = (struct op_input){c->in[i].at, c->in[i].stride, c->in[i].at ? c->in[i].rows : 0, c->in[i].width};
    if (c->worker == 0)
        watch->see(watch->context, c->op, in);
    call_barrier(c);
}
