/* unicode.h - what perigee knows about characters, from tables of ours.
 *
 * The same text must give the same ids on every machine, so nothing here asks the C library, PCRE2 or a newer
 * utf8proc what a character is. The tables (unicode_tables.h) are generated from the reference itself, which mixes
 * Unicode versions: classes in patterns are of Unicode 16, numeric characters, lower-casing and grapheme clusters of
 * that time or newer, while normalization, marks and punctuation are of Unicode 12 and older. The comments say which.
 *
 * Code points are int32_t; anything outside 0..10FFFF is in no class and maps to itself.
 *
 * Threads: everything may be called from any thread; the look-up table is built once, on first use. */
#ifndef PE_UNICODE_H
#define PE_UNICODE_H

#include "runtime/base.h"

/* ---- single characters --------------------------------------------------------------------------------------- */

bool pe_unicode_space(int32_t cp); /* White_Space, exactly 25 code points */
bool pe_unicode_word(
    int32_t cp); /* \w of added tokens and Whitespace: in patterns it lacks U+200C and U+200D */
bool pe_unicode_numeric(int32_t cp); /* Nd, Nl and No: also fractions and Roman numerals */
bool pe_unicode_punct(
    int32_t cp); /* ASCII punctuation and symbols, and category P of an old Unicode */
bool pe_unicode_mark(int32_t cp); /* Mn, Mc and Me of an old Unicode: what StripAccents removes */

/* Lower case, character by character (no final sigma). Returns how many code points it put into out (1 or 2). */
int pe_unicode_lower(int32_t cp, int32_t out[2]);

/* ---- GPT-2's byte alphabet: each byte as one printable character ---------------------------------------------- */

int32_t pe_bytelevel_char(uint8_t byte);
int pe_bytelevel_byte(int32_t cp); /* 0..255, or -1 when cp is not in the alphabet */

/* ---- the word of a character: everything in 32 bits ------------------------------------------------------------ */

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
  PE_ZS,
  PE_CATEGORIES
};
/* Bits 5-8: what it does to grapheme clusters. Bits 17-18: in conjuncts. */
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
  PE_U_CANONICAL = 1u << 27, /* has a canonical decomposition in the reference's old Unicode */
  PE_U_COMPAT = 1u << 28,    /* has another one under NFKD */
  PE_U_NFC_MAYBE = 1u << 29, /* NFC may change it, or it may join what stands before it */
  PE_U_PICTOGRAPHIC = 1u << 30
};
#define PE_U_EMOJI (1u << 31) /* does not fit an enum */

uint32_t pe_unicode_info(int32_t cp);
static inline int pe_info_category(uint32_t w) { return (int)(w & 31); }
static inline int pe_info_gcb(uint32_t w) { return (int)(w >> 5 & 15); }
static inline int pe_info_ccc(uint32_t w) {
  return (int)(w >> 9 & 255);
} /* combining class, of an old Unicode */
static inline int pe_info_incb(uint32_t w) { return (int)(w >> 17 & 3); }

/* ---- runs, for building sets: all characters in order; false after the last ------------------------------------- */

bool pe_unicode_run(size_t i, int32_t *from, int32_t *to, uint32_t *info); /* inclusive */
bool pe_unicode_script_run(size_t i, int32_t *from, int32_t *to, int *script);
int pe_unicode_script(const char *name); /* lower-case letters only; 0 when there is none */

/* ---- case without regard to case ------------------------------------------------------------------------------ */

/* Characters start, start + step, ... (count of them) are equal under (?i:) to themselves + delta, the least of their
 * group. */
typedef struct pe_unicode_shift {
  int32_t start;
  int16_t count, step;
  int32_t delta;
} pe_unicode_shift;

const pe_unicode_shift *pe_unicode_folds(size_t *count);
int32_t pe_unicode_fold(int32_t cp); /* the least character of its group */

/* Under (?i:) some characters equal two or three others (sharp s and "ss"). */
int pe_unicode_fold_expand(int32_t fold,
                           int32_t out[3]); /* of a folded character; 0: it has none */
int32_t pe_unicode_fold_contract(const int32_t *folds,
                                 int n); /* the folded character that equals these n, or -1 */

/* ---- normalization --------------------------------------------------------------------------------------------- */

enum { PE_DECOMPOSED_MAX = 20 }; /* the longest is U+FDFA: 18 */
/* Full decomposition (compat: also NFKD's); returns the count, at least 1. */
int pe_unicode_decompose(int32_t cp, bool compat, int32_t out[PE_DECOMPOSED_MAX]);
int32_t pe_unicode_compose(int32_t first, int32_t second); /* -1 when they do not */

/* ---- splitting ------------------------------------------------------------------------------------------------- */

/* The class of the UnicodeScripts pre-tokenizer; PE_SCRIPT_ANY joins everything. */
enum { PE_SCRIPT_ANY = 255 };
int pe_unicode_split_class(int32_t cp);

/* The end of the grapheme cluster that begins at `at` (at < end, valid UTF-8). */
const char *pe_unicode_grapheme(const char *at, const char *end);

#endif
