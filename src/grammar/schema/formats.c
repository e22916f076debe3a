/* formats.c - the formats of JSON Schema that are enforced, each as a regular expression of the whole text.
 *
 * A format that is not in the table is an annotation, as the specification has it. Sources: RFC 3339 (without the year
 * 0000; leap seconds where UTC has 23:59:60, at offsets of quarters of an hour), 5321, 1123 (no label with -- third: an
 * A-label would have to be decoded), 2673, 4291, 3986, 6901, 4122. */
#include "grammar/schema/reader.h"

#include "base/buf.h"

#include <stdlib.h>

#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                          \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]" \
    "))|" LEAP "-02-29)"
#define HOUR "([01][0-9]|2[0-3])"
#define TIME HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([Zz]|[+-]" HOUR ":[0-5][0-9])"

#define N "[0-9]+"
#define DURATION_TIME "T(" N "H(" N "M(" N "S)?)?|" N "M(" N "S)?|" N "S)"
#define DURATION "P((" N "D|" N "M(" N "D)?|" N "Y(" N "M(" N "D)?)?)(" DURATION_TIME ")?|" DURATION_TIME "|" N "W)"

#define X "[A-Za-z0-9]"
#define X_ "[A-Za-z0-9-]"
#define LABEL "(" X "(" X_ "?" X ")?|" X X_ X_ X "|" X X_ "(" X X_ "|-" X ")" X_ "{0,58}" X ")" // without -- third
#define HOSTNAME LABEL "(\\." LABEL ")*"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H "[0-9A-Fa-f]{1,4}"
#define H_IPV4 "(" H ":" H "|" IPV4 ")" // the last 32 bits
#define IPV6                                                                                                    \
    "((" H ":){6}" H_IPV4 "|::(" H ":){5}" H_IPV4 "|(" H ")?::(" H ":){4}" H_IPV4 "|((" H ":){0,1}" H ")?::(" H \
    ":){3}" H_IPV4 "|((" H ":){0,2}" H ")?::(" H ":){2}" H_IPV4 "|((" H ":){0,3}" H ")?::" H ":" H_IPV4 "|((" H \
    ":){0,4}" H ")?::" H_IPV4 "|((" H ":){0,5}" H ")?::" H "|((" H ":){0,6}" H ")?::)"

#define ATOM_CHARS "A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-"
#define LOCAL                                                    \
    "([" ATOM_CHARS "]+(\\.[" ATOM_CHARS "]+)*|\"([ !#-\\[\\]-~" \
    "]|\\\\[ -~])*\")"

#define PERCENT "%[0-9A-Fa-f]{2}"
#define UNRESERVED "A-Za-z0-9._~!$&'()*+,;=" // and sub-delims
#define PCHAR            \
    "([" UNRESERVED ":@" \
    "-]|" PERCENT ")"
#define AUTHORITY                                                                                             \
    "(([" UNRESERVED ":"                                                                                      \
    "-]|" PERCENT ")*@)?(\\[(" IPV6 "|[vV][0-9A-Fa-f]+\\.[" UNRESERVED ":-]+)\\]|([" UNRESERVED "-]|" PERCENT \
    ")*)(:[0-9]*)?"
#define SEGMENTS "(/" PCHAR "*)*"
#define TAIL "(\\?([/?]|" PCHAR ")*)?(#([/?]|" PCHAR ")*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(//" AUTHORITY SEGMENTS "|/?(" PCHAR "+" SEGMENTS ")?)" TAIL
#define RELATIVE                                                             \
    "(//" AUTHORITY SEGMENTS "|/(" PCHAR "+" SEGMENTS ")?|([" UNRESERVED "@" \
    "-]|" PERCENT ")+" SEGMENTS "|)" TAIL

#define POINTER "(/([^~/]|~[01])*)*"

static const struct {
    const char *name, *pattern;
    int32_t longest; // 0: no bound
    bool leaps;      // seconds may be 60 behind the pattern's own texts
} formats[READER_FORMATS] = {
    {"date", DATE},
    {"time", TIME, .leaps = true},
    {"date-time", DATE "[Tt]" TIME, .leaps = true},
    {"duration", DURATION},
    {"email", LOCAL "@(" HOSTNAME "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])"},
    {"hostname", HOSTNAME, .longest = 253},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"uri-reference", URI "|" RELATIVE},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(0|[1-9][0-9]*)(#|" POINTER ")"},
};

static rx_id regex(struct reader *r, const char *name, struct str pattern) {
    rx_id out = RX_NEVER;
    struct error err;
    if (regex_read_rx(ir_rx(r->ir), pattern, REGEX_ECMA, &out, &err) != OK)
        reader_refuse(r, err.status, "format %s: %s", name, err.text);
    return out;
}

/* 23:59:60 of UTC as it is called at each offset from -12:00 to +14:00. */
static rx_id leap_seconds(struct reader *r, bool with_date) {
    struct buf pattern = {0};
    buf_printf(&pattern, "%s(23:59:60(\\.[0-9]+)?[Zz]", with_date ? DATE "[Tt]" : "");
    for (int offset = -12 * 60; offset <= 14 * 60; offset += 15) {
        int local = (23 * 60 + 59 + offset) % (24 * 60);
        buf_printf(&pattern, "|%02d:%02d:60(\\.[0-9]+)?%s%02d:%02d", local / 60, local % 60, offset < 0 ? "-" : "\\+",
                   abs(offset) / 60, abs(offset) % 60);
    }
    buf_push(&pattern, ')');
    rx_id out = regex(r, "time", buf_view(&pattern));
    buf_release(&pattern);
    return out;
}

static rx_id make(struct reader *r, size_t i) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id out = regex(r, formats[i].name, str_of(formats[i].pattern));
    if (formats[i].longest)
        out = text_and(r, out, rx_repeat(rx, r->any_char, 0, formats[i].longest));
    if (formats[i].leaps)
        out = rx_alt(rx, out, leap_seconds(r, formats[i].name[0] == 'd'));
    return out;
}

rx_id read_format(struct reader *r, struct str name) {
    for (size_t i = 0; i < READER_FORMATS; i++)
        if (str_eq(name, str_of(formats[i].name)))
            return r->formats[i] ? r->formats[i] : (r->formats[i] = make(r, i));
    return r->any_text;
}
