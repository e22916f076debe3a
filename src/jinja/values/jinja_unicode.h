/* jinja_unicode.h - what Python says about a code point, for str.upper, strip, isalpha and their like.
 *
 * Categories and simple mappings come from utf8proc; what that lacks is in jinja_unicode.inc. Knows code
 * points only, no strings and no engine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

bool cp_is_space(int32_t cp); // str.isspace, and \s of a regular expression
bool cp_is_alpha(int32_t cp);
bool cp_is_decimal(int32_t cp);
int cp_decimal_value(int32_t cp); // 0 to 9 in any script, else -1
bool cp_is_digit(int32_t cp);
bool cp_is_numeric(int32_t cp);
bool cp_is_alnum(int32_t cp);
bool cp_is_upper(int32_t cp);
bool cp_is_lower(int32_t cp);
bool cp_is_title(int32_t cp);
bool cp_is_cased(int32_t cp);
bool cp_is_case_ignorable(int32_t cp);
bool cp_is_printable(int32_t cp);  // repr() shows it as it is
bool cp_is_line_end(int32_t cp);   // str.splitlines parts lines here
bool cp_is_name_start(int32_t cp); // of an identifier
bool cp_is_name_continue(int32_t cp);

/* What a code point becomes, usually one other. */
struct cp_run {
    int32_t cp[4];
    int n;
};
struct cp_run cp_upper(int32_t cp);
struct cp_run cp_lower(int32_t cp); // not knowing of a final sigma
struct cp_run cp_title(int32_t cp);
struct cp_run cp_fold(int32_t cp);
