/* unicode.h - properties of characters, from our own tables.
 *
 * The same text must give the same ids on every machine, so nothing here asks the C library, PCRE2
 * or a newer utf8proc what a character is. The tables (unicode_tables.h) are generated from the
 * `tokenizers` library, which mixes Unicode versions: classes in patterns are Unicode 16; numeric
 * characters, lower-casing and grapheme clusters are that or newer; normalization, marks and
 * punctuation are Unicode 12 or older. Below, "old" means the latter.
 *
 * Code points are int32_t; values outside 0..10FFFF are in no class and map to themselves.
 *
 * Threads: any thread may call any function; the look-up table is built once, on first use. */
#ifndef PE_UNICODE_H
#define PE_UNICODE_H

#include "runtime/base.h"

/* ---- single characters --------------------------------------------------------------------- */

bool pe_unicode_space(int32_t cp);   /* White_Space, exactly 25 code points */
bool pe_unicode_numeric(int32_t cp); /* Nd, Nl and No: includes fractions and Roman numerals */
bool pe_unicode_punct(int32_t cp);   /* ASCII punctuation and symbols, and old category P */
bool pe_unicode_mark(int32_t cp);    /* old Mn, Mc and Me: what StripAccents removes */
/* \w of added tokens and of Whitespace; \w of patterns lacks U+200C and U+200D. */
bool pe_unicode_word(int32_t cp);

/* Lower case of one character (no final sigma). Returns the number of code points in out, 1 or
 * 2. */
int pe_unicode_lower(int32_t cp, int32_t out[2]);

/* ---- GPT-2's byte alphabet: each byte is written as one printable character ---------------- */

int32_t pe_unicode_byte_char(uint8_t byte);
int pe_unicode_char_byte(int32_t cp); /* 0..255, or -1 if cp is not in the alphabet */
/* Appends the bytes that a text in the alphabet stands for. *all is false, and nothing is appended,
 * if some character is not in it. */
pe_status pe_unicode_put_bytes(pe_buf *out, pe_str text, bool *all, pe_error *err);

/* ---- the info word of a character: everything in 32 bits ----------------------------------- */

/* Bits 0-4: general category. */
enum {
  PE_CN,
  PE_CC,
  PE_CF,
  PE_CO,
  PE_CS,
  PE_LL,
  PE_LM,
  PE_LO,
  PE_LT,
  PE_LU,
  PE_MC,
  PE_ME,
  PE_MN,
  PE_ND,
  PE_NL,
  PE_NO,
  PE_PC,
  PE_PD,
  PE_PE,
  PE_PF,
  PE_PI,
  PE_PO,
  PE_PS,
  PE_SC,
  PE_SK,
  PE_SM,
  PE_SO,
  PE_ZL,
  PE_ZP,
  PE_ZS
};
/* Bits 5-8: grapheme cluster break. Bits 9-16: combining class. Bits 17-18: conjunct break. */
enum {
  PE_GCB_OTHER,
  PE_GCB_CR,
  PE_GCB_LF,
  PE_GCB_CONTROL,
  PE_GCB_EXTEND,
  PE_GCB_ZWJ,
  PE_GCB_FLAG,
  PE_GCB_PREPEND,
  PE_GCB_SPACING,
  PE_GCB_L,
  PE_GCB_V,
  PE_GCB_T,
  PE_GCB_LV,
  PE_GCB_LVT
};
enum { PE_INCB_NONE, PE_INCB_CONSONANT, PE_INCB_EXTEND, PE_INCB_LINKER };
/* Bits 19-31. */
enum {
  PE_U_ALPHABETIC = 1u << 19,
  PE_U_UPPERCASE = 1u << 20,
  PE_U_LOWERCASE = 1u << 21,
  PE_U_NUMERIC = 1u << 22,
  PE_U_OLD_PUNCT = 1u << 23,
  PE_U_OLD_MARK = 1u << 24,
  PE_U_OLD_MN = 1u << 25,
  PE_U_CLEANED = 1u << 26,   /* removed by Bert's clean_text */
  PE_U_CANONICAL = 1u << 27, /* has an old canonical decomposition */
  PE_U_COMPAT = 1u << 28,    /* has a different one under NFKD */
  PE_U_NFC_MAYBE = 1u << 29, /* NFC may change it or join it to the character before */
  PE_U_PICTOGRAPHIC = 1u << 30
};
#define PE_U_EMOJI (1u << 31) /* does not fit in an enum, which is an int */

uint32_t pe_unicode_info(int32_t cp);
static inline int pe_unicode_category(uint32_t info) { return (int)(info & 31); }
static inline int pe_unicode_gcb(uint32_t info) { return (int)(info >> 5 & 15); }
static inline int pe_unicode_ccc(uint32_t info) { return (int)(info >> 9 & 255); } /* old */
static inline int pe_unicode_incb(uint32_t info) { return (int)(info >> 17 & 3); }

/* ---- runs of characters in order, for building sets; false after the last ------------------ */

bool pe_unicode_run(size_t i, int32_t *from, int32_t *to, uint32_t *info); /* inclusive */
bool pe_unicode_script_run(size_t i, int32_t *from, int32_t *to, int *script);
int pe_unicode_script(const char *name); /* in lower-case letters; 0: no such script */

/* ---- matching without regard to case, (?i:) ------------------------------------------------ */

/* `count` characters, start, start + step, ..., each of which equals itself + delta: the lowest
 * character of its group. */
typedef struct pe_unicode_shift {
  int32_t start;
  int16_t count, step;
  int32_t delta;
} pe_unicode_shift;

const pe_unicode_shift *pe_unicode_folds(size_t *count);
int32_t pe_unicode_fold(int32_t cp); /* the lowest character of its group */

/* Some characters equal two or three others (sharp s and "ss"). Both work on folded characters:
 * expand returns how many there are (0: none), contract the one that equals these n, or -1. */
int pe_unicode_fold_expand(int32_t fold, int32_t out[3]);
int32_t pe_unicode_fold_contract(const int32_t *folds, int n);

/* ---- normalization ------------------------------------------------------------------------- */

enum { PE_DECOMPOSED_MAX = 20 }; /* the longest is U+FDFA: 18 */
/* Full decomposition (compat: NFKD's); returns the number of characters, at least 1. */
int pe_unicode_decompose(int32_t cp, bool compat, int32_t out[PE_DECOMPOSED_MAX]);
int32_t pe_unicode_compose(int32_t first, int32_t second); /* -1: they do not compose */

/* ---- splitting ----------------------------------------------------------------------------- */

/* Classes of the UnicodeScripts pre-tokenizer; PE_SCRIPT_ANY continues any other. */
enum { PE_SCRIPT_ANY = 255 };
int pe_unicode_split_class(int32_t cp);

/* The end of the grapheme cluster that begins at `at` (at < end, valid UTF-8). */
const char *pe_unicode_grapheme(const char *at, const char *end);

#endif
