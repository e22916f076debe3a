/* tool_rows.h - formats of models whose template does not show how they write calls. For this folder. */
#pragma once

#include "text/tools/tool_format.h"

/* Fills f from the first row that the source fits, and says so. always: of the rows that go before any rendering, as
 * their forms are no marks around slots; otherwise of the others. False: there is none. */
bool tool_row_take(struct tool_format *f, struct str source, bool always);
