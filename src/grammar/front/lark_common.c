/* lark_common.c - the terminals that `%import common.` names. See lark_reader.h.
 *
 * The languages are those that Lark's own library means: where it finds a string's or a comment's end by a lazy
 * quantifier, the first end is written out here. */
#include "grammar/front/lark_reader.h"

const char lark_common[] = "DIGIT: \"0\"..\"9\"\n"
                           "HEXDIGIT: \"a\"..\"f\" | \"A\"..\"F\" | DIGIT\n"
                           "INT: DIGIT+\n"
                           "SIGNED_INT: [\"+\" | \"-\"] INT\n"
                           "DECIMAL: INT \".\" INT? | \".\" INT\n"
                           "_EXP: (\"e\" | \"E\") SIGNED_INT\n"
                           "FLOAT: INT _EXP | DECIMAL _EXP?\n"
                           "SIGNED_FLOAT: [\"+\" | \"-\"] FLOAT\n"
                           "NUMBER: FLOAT | INT\n"
                           "SIGNED_NUMBER: [\"+\" | \"-\"] NUMBER\n"
                           "ESCAPED_STRING: /\"([^\"\\\\\\n]|\\\\[^\\n])*\"/\n"
                           "LCASE_LETTER: \"a\"..\"z\"\n"
                           "UCASE_LETTER: \"A\"..\"Z\"\n"
                           "LETTER: UCASE_LETTER | LCASE_LETTER\n"
                           "WORD: LETTER+\n"
                           "CNAME: (\"_\" | LETTER) (\"_\" | LETTER | DIGIT)*\n"
                           "WS_INLINE: /[ \\t]+/\n"
                           "WS: /[ \\t\\f\\r\\n]+/\n"
                           "CR: /\\r/\n"
                           "LF: /\\n/\n"
                           "NEWLINE: (CR? LF)+\n"
                           "SH_COMMENT: /#[^\\n]*/\n"
                           "CPP_COMMENT: /\\/\\/[^\\n]*/\n"
                           "C_COMMENT: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//\n"
                           "SQL_COMMENT: /--[^\\n]*/\n";
