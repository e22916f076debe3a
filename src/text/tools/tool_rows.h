/* tool_rows.h - formats of models whose template does not show how they write calls. For this folder. */
#pragma once

#include "text/tools/tool_format.h"

/* Fills f from the first row that the source fits, and says so. always: of the rows that go before any rendering, as
 * their forms are no marks around slots; otherwise of the others. False: there is none. */
bool tool_row_take(struct tool_format *f, struct str source, bool always);

/* Marks that models put around calls beside what their template shows. Behind `open` stands JSON of a name and
 * arguments, or an array of it; a literal one stands around calls as Python writes them. */
struct tool_wrapper {
    struct str open, close; // close: may be empty, and forgotten
    bool literal;           // of formats that write calls so
    bool fence;             // of formats that have no mark: it is much else, too
};

enum { TOOL_WRAPPERS = 5 };
extern const struct tool_wrapper tool_wrappers[TOOL_WRAPPERS];

/* Whether answers in this format may have it. */
bool tool_wrapper_fits(const struct tool_wrapper *w, const struct tool_format *f);
