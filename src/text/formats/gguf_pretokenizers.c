/* gguf_pretokenizers.c - what the names in tokenizer.ggml.pre mean: the patterns that cut a text into words.
 *
 * A name stands for the tokenizer.json of the model family that it was made of; the patterns are those of that file,
 * in its own spelling, one after another. "whitespace", whose rule drops the blanks, is not here and is refused. */
#include "text/formats/gguf_pretokenizers.h"

#include "base/status.h"

#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LLAMA3 \
    ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2 \
    ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O                                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ENGLISH "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ENGLISH \
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PUNCTUATED "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
#define KANJI_AND_KANA "[一-龥぀-ゟ゠-ヿ]+"
// Not in letters that are Han, which a set takes away ("&&[^\\p{Han}]") in kimi-k2's own file.
#define HAN                                                                                                          \
    "\\x{2E80}-\\x{2E99}\\x{2E9B}-\\x{2EF3}\\x{2F00}-\\x{2FD5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}\\x{3038}-\\x{"   \
    "303B}"                                                                                                          \
    "\\x{3400}-\\x{4DBF}\\x{4E00}-\\x{9FFF}\\x{F900}-\\x{FA6D}\\x{FA70}-\\x{FAD9}\\x{16FE2}\\x{16FE3}\\x{16FF0}\\x{" \
    "16FF1}"                                                                                                         \
    "\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2B739}\\x{2B740}-\\x{2B81D}\\x{2B820}-\\x{2CEA1}\\x{2CEB0}-\\x{2EBE0}"      \
    "\\x{2EBF0}-\\x{2EE5D}\\x{2F800}-\\x{2FA1D}\\x{30000}-\\x{3134A}\\x{31350}-\\x{323AF}"
#define NOT_HAN(set) "(?:(?![" HAN "])" set ")"
#define PORO " ?[^(\\s|.,!?…。，、।۔،)]+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

const char gguf_gpt2_pattern[] = GPT2;

static const struct gguf_pretokenizer table[] = {
    {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {LLAMA3},
     .whole_word_first = true,
     .add_bos = true},
    {" dbrx smaug-bpe chatglm-bpe ", {LLAMA3}},
    {" glm4 glm5 ", {LLAMA3}, .whole_word_first = true},
    {" minicpm5 ",
     {"\\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                     "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     .whole_word_first = true},
    {" deepseek-llm ",
     {"[\r\n]",
      "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯ"
      "Ա-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-"
      "Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ"
      "-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"
      "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
      "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
      "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"}},
    {" deepseek-coder ", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     {"\\p{N}{1,3}", KANJI_AND_KANA,
      PUNCTUATED "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ", {"\\p{N}", GPT2}},
    {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 jais trillion "
     "granite-docling jina-v1-en jina-v2-code roberta-bpe ",
     {GPT2}},
    {" mpt olmo ", {GPT2}, .nfc = true},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 ", {QWEN2}, .nfc = true},
    {" hunyuan solar-open grok-2 ", {QWEN2}},
    {" qwen35 ",
     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}"
      "\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {" poro-chat bloom gpt3-finnish ", {PORO}},
    {" viking ", {PORO, "\\p{N}"}},
    {" tekken ",
     {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
      "+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M"
      "}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     .whole_word_first = true,
     .add_bos = true},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", {GPT4O}},
    {" granite-embed-multi-97m ", {GPT4O}, .whole_word_first = true},
    {" youtu ",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" KANJI_AND_KANA,
      "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ENGLISH "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ENGLISH
      "?|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     .whole_word_first = true},
    {" kimi-k2 ",
     {"[" HAN
      "]+|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "*" NOT_HAN(LOWER) "+" ENGLISH "?|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(
          UPPER) "+" NOT_HAN(LOWER) "*" ENGLISH
                                    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {" afmoe ",
     {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
      "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
      PUNCTUATED "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+"
                 "|\\s+(?!\\S)|\\s+"}},
    {" laguna ", {"[^\\n]+|[\\n]+", QWEN2}},
    {" chameleon ",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     .add_bos = true},
    {" spark2_5 ",
     {"\\p{N}{1,3}", KANJI_AND_KANA,
      PUNCTUATED "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+", "\\p{N}"}},
    {" tiny_aya cohere2moe ", {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {" superbpe ", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {" bailingmoe bailingmoe2 llada-moe ",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\"
      "n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {" seed-coder ",
     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}"
      "\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {" jais-2 ",
     {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
              "|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)"
              "|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
    {" exaone-moe ",
     {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
              "[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {" ufakzeka ",
     {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
};

const struct gguf_pretokenizer *gguf_pretokenizer_find(struct str name) {
    if (memchr(name.ptr, ' ', name.len))
        return NULL;
    for (size_t i = 0; name.len && i < ARRAY_LEN(table); i++)
        for (const char *at = table[i].names; (at = memmem(at, strlen(at), name.ptr, name.len)); at++)
            if (at[-1] == ' ' && at[name.len] == ' ')
                return &table[i];
    return NULL;
}

static bool same_patterns(const char *const *a, const char *const *b) {
    for (; *a && *b; a++, b++)
        if (strcmp(*a, *b) != 0)
            return false;
    return !*a && !*b;
}

struct str gguf_pretokenizer_name(const char *const *patterns, bool nfc, bool whole_word_first) {
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].nfc == nfc && table[i].whole_word_first == whole_word_first &&
            same_patterns(table[i].patterns, patterns))
            return (struct str){table[i].names + 1, strcspn(table[i].names + 1, " ")};
    return STR("");
}
