/* jinja_lexer.h - template text to tokens, with Jinja's control of white space: trim_blocks, lstrip_blocks,
 * the signs - and + in tags, comments and raw blocks. Knows nothing of statements. */
#pragma once

#include "jinja/values/jinja_value.h"

enum token_kind {
    TOKEN_EOF,
    TOKEN_DATA,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER, // integer or float, see value
    TOKEN_ADD,
    TOKEN_SUB,
    TOKEN_DIV,
    TOKEN_FLOORDIV,
    TOKEN_MUL,
    TOKEN_MOD,
    TOKEN_POW,
    TOKEN_TILDE,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACE,
    TOKEN_RBRACE,
    TOKEN_EQ,
    TOKEN_NE,
    TOKEN_GT,
    TOKEN_GE,
    TOKEN_LT,
    TOKEN_LE,
    TOKEN_ASSIGN,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_SEMICOLON,
};

struct token {
    enum token_kind kind;
    int line;
    struct str text; // DATA and NAME
    jval value;      // STRING and NUMBER
};

struct lexer {
    struct jinja *j;
    struct str src; // newlines are \n
    size_t at;
    int line;
    bool in_tag, in_variable;
    bool line_starting; // what was read last ended a line
    char *open;         // [n_open] the closing bracket of each open one
    size_t n_open, cap_open;
    struct token begin; // of a tag whose preceding text was just given out; EOF when there is none
};

void lexer_init(struct lexer *l, struct jinja *j, struct str source);
struct token lexer_next(struct lexer *l);

/* How Jinja speaks of a token: "end of statement block", "(", a name itself. */
struct str token_describe(const struct token *t);
struct str token_kind_describe(enum token_kind kind);
