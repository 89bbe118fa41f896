/* unicode.c - see unicode.h. */
#include "runtime/text/unicode.h"
#include "runtime/text/unicode_tables.h"
#include "runtime/utf8.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
enum { TOP = 0x110000, BLOCK = 128 };

/* ---- the look-up table: page -> block -> kind -> word -------------------------------------- */

static uint16_t page[TOP / BLOCK];
static uint8_t block[BLOCKS][BLOCK];
static pthread_once_t built = PTHREAD_ONCE_INIT;

/* Walks the runs block by block and stores each distinct block once. BLOCKS is their exact number,
 * so `used < BLOCKS` never fails with the generated tables. */
static void build(void) {
  size_t run = 0, used = 0, last = 0;
  for (int32_t start = 0; start < TOP; start += BLOCK) {
    uint8_t fresh[BLOCK];
    for (int32_t i = 0; i < BLOCK; i++) {
      while (run + 1 < COUNT(kinds) && (int32_t)(kinds[run + 1] >> 8) <= start + i) run++;
      fresh[i] = (uint8_t)kinds[run];
    }
    if (memcmp(block[last], fresh, BLOCK)) { /* equal blocks are mostly neighbours */
      for (last = 0; last < used && memcmp(block[last], fresh, BLOCK);) last++;
    }
    if (last >= used && used < BLOCKS) memcpy(block[last = used++], fresh, BLOCK);
    page[start / BLOCK] = (uint16_t)last;
  }
}

uint32_t pe_unicode_info(int32_t cp) {
  if (cp < 0 || cp >= TOP) return 0;
  pthread_once(&built, build);
  return words[block[page[cp / BLOCK]][cp % BLOCK]];
}

/* ---- single characters --------------------------------------------------------------------- */

bool pe_unicode_space(int32_t cp) {
  if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
  return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
         cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool pe_unicode_word(int32_t cp) {
  uint32_t w = pe_unicode_info(cp);
  int c = pe_unicode_category(w);
  if (cp == 0x200c || cp == 0x200d) return true;
  return (w & PE_U_ALPHABETIC) || c == PE_MN || c == PE_MC || c == PE_ME || c == PE_ND ||
         c == PE_PC;
}

bool pe_unicode_numeric(int32_t cp) { return pe_unicode_info(cp) & PE_U_NUMERIC; }
bool pe_unicode_punct(int32_t cp) { return pe_unicode_info(cp) & PE_U_OLD_PUNCT; }
bool pe_unicode_mark(int32_t cp) { return pe_unicode_info(cp) & PE_U_OLD_MARK; }

static int32_t shift(const pe_unicode_shift *table, size_t count, int32_t cp) {
  size_t lo = 0, hi = count;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (table[mid].start <= cp)
      lo = mid + 1;
    else
      hi = mid;
  }
  if (lo) {
    const pe_unicode_shift *s = &table[lo - 1];
    int32_t d = cp - s->start;
    if (d % s->step == 0 && d / s->step < s->count) return cp + s->delta;
  }
  return cp;
}

int pe_unicode_lower(int32_t cp, int32_t out[2]) {
  if (cp == 0x130) { /* I with dot above: the only one that becomes two */
    out[0] = 'i', out[1] = 0x307;
    return 2;
  }
  if (cp < 0x80)
    out[0] = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
  else
    out[0] = shift(lowers, COUNT(lowers), cp);
  return 1;
}

/* ---- the byte alphabet: printable Latin-1 is itself, the rest counts up from U+0100 -------- */

static bool printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

int32_t pe_unicode_byte_char(uint8_t byte) {
  if (printable(byte)) return byte;
  if (byte <= 0x20) return 0x100 + byte;
  return byte == 0xad ? 0x143 : 0x121 + (byte - 0x7f);
}

int pe_unicode_char_byte(int32_t cp) {
  if (cp >= 0 && cp < 0x100) return printable(cp) ? cp : -1;
  if (cp < 0x100 || cp > 0x143) return -1;
  if (cp <= 0x120) return cp - 0x100;
  return cp == 0x143 ? 0xad : cp - 0x121 + 0x7f;
}

pe_status pe_unicode_put_bytes(pe_buf *out, pe_str text, bool *all, pe_error *err) {
  size_t before = out->len;
  *all = false;
  pe_status rc = pe_buf_reserve(out, text.len, err); /* a character is at least as long as a byte */
  if (rc) return rc;
  const char *end = text.at + text.len;
  for (const char *at = text.at; at < end;) {
    int32_t cp;
    at += pe_utf8_next(at, end, &cp);
    int byte = pe_unicode_char_byte(cp);
    if (byte < 0) {
      out->len = before;
      return PE_OK;
    }
    out->data[out->len++] = (char)byte;
  }
  *all = true;
  return PE_OK;
}

/* ---- runs ---------------------------------------------------------------------------------- */

static bool run_at(const uint32_t *runs, size_t count, size_t i, int32_t *from, int32_t *to,
                   uint32_t *value) {
  if (i >= count) return false;
  *from = (int32_t)(runs[i] >> 8);
  *to = i + 1 < count ? (int32_t)(runs[i + 1] >> 8) - 1 : TOP - 1;
  *value = runs[i] & 255;
  return true;
}

bool pe_unicode_run(size_t i, int32_t *from, int32_t *to, uint32_t *info) {
  uint32_t kind;
  if (!run_at(kinds, COUNT(kinds), i, from, to, &kind)) return false;
  *info = words[kind];
  return true;
}

bool pe_unicode_script_run(size_t i, int32_t *from, int32_t *to, int *script) {
  uint32_t value;
  if (!run_at(script_runs, COUNT(script_runs), i, from, to, &value)) return false;
  *script = (int)value;
  return true;
}

int pe_unicode_script(const char *name) {
  for (size_t i = 0; i < COUNT(script_names); i++)
    if (!strcmp(script_names[i].name, name)) return script_names[i].script;
  return 0;
}

int pe_unicode_split_class(int32_t cp) {
  if (cp < 0 || cp >= TOP) return 0;
  size_t lo = 0, hi = COUNT(split_runs);
  while (hi - lo > 1) {
    size_t mid = (lo + hi) / 2;
    if ((int32_t)(split_runs[mid] >> 8) <= cp)
      lo = mid;
    else
      hi = mid;
  }
  return (int)(split_runs[lo] & 255);
}

/* ---- case ---------------------------------------------------------------------------------- */

const pe_unicode_shift *pe_unicode_folds(size_t *count) {
  *count = COUNT(folds);
  return folds;
}

int32_t pe_unicode_fold(int32_t cp) { return shift(folds, COUNT(folds), cp); }

int pe_unicode_fold_expand(int32_t fold, int32_t out[3]) {
  for (size_t i = 0; i < COUNT(multi_folds); i++) {
    if (multi_folds[i].cp != fold) continue;
    memcpy(out, multi_folds[i].to, sizeof multi_folds[i].to);
    return out[2] ? 3 : 2;
  }
  return 0;
}

int32_t pe_unicode_fold_contract(const int32_t *f, int n) {
  for (size_t i = 0; i < COUNT(multi_folds); i++) {
    const int32_t *to = multi_folds[i].to;
    if (n == (to[2] ? 3 : 2) && to[0] == f[0] && to[1] == f[1] && (n == 2 || to[2] == f[2]))
      return multi_folds[i].cp;
  }
  return -1;
}

/* ---- normalization ------------------------------------------------------------------------- */

/* Hangul syllables are arithmetic: 19 leading, 21 vowel and 27 trailing letters. */
enum {
  S0 = 0xac00,
  L0 = 0x1100,
  V0 = 0x1161,
  T0 = 0x11a7,
  L_COUNT = 19,
  V_COUNT = 21,
  T_COUNT = 28,
  S_COUNT = 11172
};

/* The decompositions are utf8proc's, which may be newer than the library's: only characters that
 * our tables mark are looked up, and Unicode guarantees that theirs never change. */
int pe_unicode_decompose(int32_t cp, bool compat, int32_t out[PE_DECOMPOSED_MAX]) {
  if (cp >= S0 && cp < S0 + S_COUNT) {
    int32_t s = cp - S0, t = s % T_COUNT;
    out[0] = L0 + s / (V_COUNT * T_COUNT);
    out[1] = V0 + s % (V_COUNT * T_COUNT) / T_COUNT;
    out[2] = T0 + t;
    return t ? 3 : 2;
  }
  uint32_t marks = compat ? PE_U_CANONICAL | PE_U_COMPAT : PE_U_CANONICAL;
  if (pe_unicode_info(cp) & marks) {
    int last = 0, options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n =
        utf8proc_decompose_char(cp, out, PE_DECOMPOSED_MAX, (utf8proc_option_t)options, &last);
    if (n >= 1 && n <= PE_DECOMPOSED_MAX) return (int)n;
  }
  out[0] = cp;
  return 1;
}

int32_t pe_unicode_compose(int32_t a, int32_t b) {
  if (a >= L0 && a < L0 + L_COUNT && b >= V0 && b < V0 + V_COUNT)
    return S0 + ((a - L0) * V_COUNT + (b - V0)) * T_COUNT;
  if (a >= S0 && a < S0 + S_COUNT && (a - S0) % T_COUNT == 0 && b > T0 && b < T0 + T_COUNT)
    return a + (b - T0);
  size_t lo = 0, hi = COUNT(composed);
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    const pe_unicode_pair *p = &composed[mid];
    if (p->first == a && p->second == b) return p->composed;
    if (p->first < a || (p->first == a && p->second < b))
      lo = mid + 1;
    else
      hi = mid;
  }
  return -1;
}

/* ---- grapheme clusters (UAX 29) ------------------------------------------------------------ */

/* What the rules need to know about the cluster so far. */
typedef struct cluster {
  int last;       /* class of the last character */
  bool pict_zwj;  /* pictograph, any extenders, joiner: the next pictograph belongs to it */
  bool pict;      /* pictograph and any extenders */
  bool odd_flag;  /* an odd number of flag letters so far */
  bool consonant; /* a consonant followed by linkers and extenders only ... */
  bool linked;    /* ... at least one of them a linker */
} cluster;

static bool joins(const cluster *c, uint32_t w) {
  int a = c->last, b = pe_unicode_gcb(w);
  if (a == PE_GCB_CR) return b == PE_GCB_LF;
  if (a == PE_GCB_CONTROL || a == PE_GCB_LF) return false;
  if (b == PE_GCB_CONTROL || b == PE_GCB_CR || b == PE_GCB_LF) return false;
  if (a == PE_GCB_L && (b == PE_GCB_L || b == PE_GCB_V || b == PE_GCB_LV || b == PE_GCB_LVT))
    return true;
  if ((a == PE_GCB_LV || a == PE_GCB_V) && (b == PE_GCB_V || b == PE_GCB_T)) return true;
  if ((a == PE_GCB_LVT || a == PE_GCB_T) && b == PE_GCB_T) return true;
  if (b == PE_GCB_EXTEND || b == PE_GCB_ZWJ || b == PE_GCB_SPACING || a == PE_GCB_PREPEND)
    return true;
  if (c->linked && pe_unicode_incb(w) == PE_INCB_CONSONANT) return true;
  if (c->pict_zwj && (w & PE_U_PICTOGRAPHIC)) return true;
  return c->odd_flag && b == PE_GCB_FLAG;
}

static void take(cluster *c, uint32_t w) {
  int b = pe_unicode_gcb(w), conjunct = pe_unicode_incb(w);
  c->pict_zwj = c->pict && b == PE_GCB_ZWJ;
  c->pict = (w & PE_U_PICTOGRAPHIC) || (c->pict && b == PE_GCB_EXTEND);
  c->odd_flag = b == PE_GCB_FLAG && !c->odd_flag;
  if (conjunct == PE_INCB_CONSONANT)
    c->consonant = true, c->linked = false;
  else if (conjunct == PE_INCB_LINKER)
    c->linked = c->consonant;
  else if (conjunct != PE_INCB_EXTEND)
    c->consonant = c->linked = false;
  c->last = b;
}

const char *pe_unicode_grapheme(const char *at, const char *end) {
  int32_t cp;
  at += pe_utf8_next(at, end, &cp);
  /* Two ASCII characters only join as CR LF. */
  if (at == end || (cp < 0x80 && (uint8_t)*at < 0x80 && cp != '\r')) return at;
  cluster c = {0};
  take(&c, pe_unicode_info(cp));
  while (at < end) {
    int n = pe_utf8_next(at, end, &cp);
    uint32_t w = pe_unicode_info(cp);
    if (!joins(&c, w)) break;
    take(&c, w);
    at += n;
  }
  return at;
}
