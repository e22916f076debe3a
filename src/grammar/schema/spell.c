/* spell.c - the language between the quotes of a JSON string, made of the language of the text that it says.
 *
 * What must be escaped is written in one way: \" \\ \b \f \n \r \t, \u00xx for other controls. The map from a
 * byte of the text to what is written is then one to one, so it goes through `and` and `not` of languages. Where
 * neither is within, a place where any character may stand takes every spelling that JSON has: \/ and \uXXXX too,
 * of pairs of surrogates. */
#include "grammar/rx_pool.h"
#include "grammar/schema/reader.h"

#define HEX "[0-9a-fA-F]"
#define ANY_CHAR_SPELLED                                                                                        \
    "[^\\x00-\\x1f\"\\\\]|\\\\([\"\\\\/bfnrt]|u([0-9a-cA-CefEF]" HEX "{3}|[dD][0-7]" HEX "{2}|[dD][89abAB]" HEX \
    "{2}\\\\u[dD][c-fC-F]" HEX "{2}))"

static rx_id spell_byte(struct rx_pool *rx, unsigned byte) {
    static const char shorts[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    char text[8];
    for (size_t i = 0; i + 1 < sizeof shorts; i += 2)
        if ((unsigned char)shorts[i] == byte) {
            snprintf(text, sizeof text, "\\%c", shorts[i + 1]);
            return rx_bytes(rx, str_of(text));
        }
    snprintf(text, sizeof text, "\\u%04x", byte);
    return rx_bytes(rx, str_of(text));
}

static rx_id spell_set(struct rx_pool *rx, struct rx_set set) {
    rx_id out = RX_NEVER;
    for (unsigned byte = 0; byte < 256; byte++)
        if ((byte < 0x20 || byte == '"' || byte == '\\') && rx_set_has(&set, byte)) {
            out = rx_alt(rx, out, spell_byte(rx, byte));
            set.w[byte >> 6] &= ~((uint64_t)1 << (byte & 63));
        }
    return rx_alt(rx, out, rx_of_set(rx, &set));
}

static rx_id spell_node(struct reader *r, rx_id a, bool wide);

static rx_id spell_list(struct reader *r, const struct rx_node *n, bool wide) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id *parts = xcalloc(n->b, sizeof *parts);
    for (uint32_t i = 0; i < n->b; i++)
        parts[i] = spell_node(r, rx->lists[n->a + i], wide);
    rx_id out = rx_list(rx, n->kind, parts, n->b);
    if (n->kind == RX_K_AND && n->max != RX_NEVER)
        rx_set_bound(rx, out, spell_node(r, (rx_id)n->max, wide));
    free(parts);
    return out;
}

/* Along the right end, which may be long. */
static rx_id spell_seq(struct reader *r, rx_id a, bool wide) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id *parts = NULL;
    size_t n = 0, cap = 0;
    for (; rx->nodes[a].kind == RX_K_SEQ; a = rx->nodes[a].b) {
        rx_id part = spell_node(r, rx->nodes[a].a, wide);
        RX_GROW(parts, n, cap);
        parts[n++] = part;
    }
    rx_id out = spell_node(r, a, wide);
    while (n > 0)
        out = rx_seq(rx, parts[--n], out);
    free(parts);
    return out;
}

static void remember(struct reader *r, rx_id a, bool wide, rx_id spelled) {
    if (a >= r->cap_spelled[wide]) {
        uint32_t cap = MAX(2 * r->cap_spelled[wide], a + 1024);
        r->spelled[wide] = xrealloc(r->spelled[wide], cap, sizeof(rx_id));
        memset(r->spelled[wide] + r->cap_spelled[wide], 0, (cap - r->cap_spelled[wide]) * sizeof(rx_id));
        r->cap_spelled[wide] = cap;
    }
    r->spelled[wide][a] = spelled;
}

static rx_id spell_node(struct reader *r, rx_id a, bool wide) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (a < r->cap_spelled[wide] && r->spelled[wide][a])
        return r->spelled[wide][a];
    if (a <= RX_ALL)
        return a;
    struct rx_node n = rx->nodes[a];
    rx_id out = a;
    if (wide && a == r->any_char)
        out = r->any_char_spelled;
    else if (n.kind == RX_K_BYTES)
        out = spell_set(rx, rx->sets[n.a]);
    else if (n.kind == RX_K_SEQ)
        out = spell_seq(r, a, wide);
    else if (n.kind == RX_K_ALT || n.kind == RX_K_AND)
        out = spell_list(r, &n, wide);
    else if (n.kind == RX_K_NOT)
        out = rx_not(rx, spell_node(r, n.a, wide));
    else if (n.kind == RX_K_REPEAT)
        out = rx_repeat(rx, spell_node(r, n.a, wide), n.min, n.max);
    remember(r, a, wide, out);
    return out;
}

rx_id spell(struct reader *r, rx_id text) {
    struct rx_pool *rx = ir_rx(r->ir);
    struct error err;
    if (r->any_char_spelled == RX_NEVER &&
        regex_read_rx(rx, STR(ANY_CHAR_SPELLED), REGEX_ECMA, &r->any_char_spelled, &err) != OK)
        reader_refuse(r, err.status, "strings: %s", err.text);
    return spell_node(r, text, !(rx->nodes[text].flags & RX_BOOLEAN));
}

rx_id spell_one_way(struct reader *r, rx_id text) { return spell_node(r, text, false); }
