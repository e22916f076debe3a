/* script.h - which writing system a character belongs to, for the UnicodeScripts pre-tokenizer. */
#pragma once

#include <stdint.h>

enum { SCRIPT_ANY = 0 }; // the space, and characters without script: they go with every one

/* A number for the script of cp; kana count as Han, as in SentencePiece. The first call takes some milliseconds. */
int script_of(uint32_t cp);
