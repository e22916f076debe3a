/* script.c - see script.h.
 *
 * The only library here that knows scripts is PCRE2, and it answers only by matching: a pattern with one marked
 * alternative a script is asked for one character. Hardly any file needs this, so a table would be dead weight. */
#include "text/regex/script.h"

#include "base/buf.h"
#include "base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <pthread.h>

/* ISO 15924 codes, of four letters and a space each. Hira and Kana are left to Hani. */
static const char codes[] =
    "Zyyy Latn Bopo Zinh Grek Copt Cyrl Armn Hebr Arab Syrc Thaa Nkoo Samr Mand Deva Beng Guru Gujr Orya Taml Telu "
    "Knda Mlym Sinh Thai Laoo Tibt Mymr Geor Hang Ethi Cher Cans Ogam Runr Tglg Hano Buhd Tagb Khmr Mong Limb Tale "
    "Talu Bugi Lana Bali Sund Batk Lepc Olck Brai Glag Tfng Hani Yiii Lisu Vaii Bamu Sylo Phag Saur Kali Rjng Java "
    "Cham Tavt Mtei Linb Lyci Cari Ital Goth Perm Ugar Xpeo Dsrt Shaw Osma Osge Elba Aghb Vith Lina Cprt Armi Palm "
    "Nbat Hatr Phnx Lydi Mero Merc Khar Sarb Narb Mani Avst Prti Phli Phlp Orkh Hung Rohg Yezi Sogo Sogd Ougr Chrs "
    "Elym Brah Kthi Sora Cakm Mahj Shrd Khoj Mult Sind Gran Newa Tirh Sidd Modi Takr Ahom Dogr Wara Diak Nand Zanb "
    "Soyo Pauc Bhks Marc Gonm Gong Maka Xsux Cpmn Egyp Hluw Mroo Tnsa Bass Hmng Medf Miao Tang Nshu Kits Dupl Sgnw "
    "Hmnp Toto Wcho Mend Adlm";

static pcre2_code *classifier;

static void build_classifier(void) {
    struct buf pattern = {0};
    buf_str(&pattern, STR("[\\p{sc:Hira}\\p{sc:Kana}\\x{30FC}](*MARK:Hani)"));
    for (size_t i = 0; i + 4 < sizeof codes; i += 5)
        buf_printf(&pattern, "|\\p{sc:%.4s}(*MARK:%.4s)", codes + i, codes + i);
    int error;
    size_t offset;
    classifier = pcre2_compile((PCRE2_SPTR)pattern.ptr, pattern.len, PCRE2_UTF | PCRE2_ANCHORED, &error, &offset, NULL);
    BUG_IF(!classifier);
    buf_release(&pattern);
}

int script_of(uint32_t cp) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build_classifier);
    if (cp == ' ')
        return SCRIPT_ANY;
    char utf8[4];
    size_t n = (size_t)utf8_encode(cp, utf8);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int script = SCRIPT_ANY;
    if (pcre2_match(classifier, (PCRE2_SPTR)utf8, n, 0, PCRE2_NO_UTF_CHECK, data, NULL) >= 0) {
        const char *mark = (const char *)pcre2_get_mark(data);
        script = 1 + (int)((strstr(codes, mark) - codes) / 5);
    }
    pcre2_match_data_free(data);
    return script;
}
