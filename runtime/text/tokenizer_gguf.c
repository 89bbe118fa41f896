/* tokenizer_gguf.c - reads the vocabulary in the metadata of a GGUF file (`tokenizer.ggml.*`).
 *
 * Three kinds of model are read. "gpt2" is byte-level BPE with merges. The file does not say how
 * text is split, it only names the pre-tokenizer (`tokenizer.ggml.pre`); the patterns for these
 * names are below, as the models' authors published them. "llama" is SentencePiece: any two
 * neighbours whose text is a token merge, by score. "gemma4" has SentencePiece's spaces and byte
 * tokens, but merges. All three are built from the same parts as a tokenizer.json: the pipeline is
 * written as JSON and read by the same code. Other kinds and unknown names are errors.
 *
 * Token types: control and unknown tokens are special; user-defined ones match in all text. */
#include <string.h>

#include "runtime/utf8.h"
#include "runtime/weights/gguf.h"
#include "runtime/text/tokenizer_parts.h"

enum { UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4 };

/* ---- patterns ------------------------------------------------------------------------------ */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED_FIRST                                                                                \
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define CASED_SECOND                                                                               \
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
#define CASED_SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" SYMBOLS "|" SPACES
#define QWEN2 CONTRACTIONS "|" WORDS "|\\p{N}|" SYMBOLS "|" SPACES
#define QWEN35                                                                                     \
  CONTRACTIONS                                                                                     \
  "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
#define O200K                                                                                      \
  CASED_FIRST CONTRACTIONS "?|" CASED_SECOND CONTRACTIONS "?|\\p{N}{1,3}|" CASED_SYMBOLS "|" SPACES
#define TEKKEN CASED_FIRST "|" CASED_SECOND "|\\p{N}|" CASED_SYMBOLS "|" SPACES
#define BAILING "'(?i:[sdmt]|ll|ve|re)|" WORDS "|\\p{N}|" SYMBOLS "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED CONTRACTIONS "|" WORDS "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES
#define EXAONE_MOE                                                                                 \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "             \
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"                                                   \
               "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define JAIS2                                                                                      \
  CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" SYMBOLS                                                   \
               "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|"    \
               "\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"
#define UPPER_NOT_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_NOT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI                                                                                       \
  "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "*" LOWER_NOT_HAN "+" CONTRACTIONS            \
  "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "+" LOWER_NOT_HAN "*" CONTRACTIONS                      \
  "?|\\p{N}{1,3}|" SYMBOLS "|" SPACES
#define BLOOM                                                                                      \
  " ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"
#define CJK_RUN "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+"
#define DEEPSEEK_MAIN                                                                              \
  "[!\"#$%&'()*+,\\-./"                                                                            \
  ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"                \
  " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
/* U+4E00-U+9FA5, U+0800-U+4E00, U+AC00-U+D7FF */
#define DEEPSEEK_CJK                                                                               \
  "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"
#define DEEPSEEK_LETTERS                                                                           \
  "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{" \
  "293}\\x{295}-\\x{2af}"                                                                          \
  "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}"    \
  "\\x{38e}-\\x{3a1}"                                                                              \
  "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{"    \
  "13a0}-\\x{13f5}"                                                                                \
  "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{"     \
  "1d77}\\x{1d79}-\\x{1d9a}"                                                                       \
  "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{"     \
  "1f57}\\x{1f59}\\x{1f5b}"                                                                        \
  "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}" \
  "\\x{1fc6}-\\x{1fcc}"                                                                            \
  "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{"     \
  "1ffc}\\x{2102}\\x{2107}"                                                                        \
  "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"  \
  "\\x{212f}-\\x{2134}"                                                                            \
  "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}"  \
  "\\x{2c7e}-\\x{2ce4}"                                                                            \
  "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}" \
  "\\x{a771}-\\x{a787}"                                                                            \
  "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{"     \
  "ff3a}\\x{ff41}-\\x{ff5a}"                                                                       \
  "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}" \
  "-\\x{10cf2}"                                                                                    \
  "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+"
#define DEEPSEEK_MARKS                                                                             \
  "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"

enum { MAX_SPLITS = 6 };

typedef struct family {
  const char *names;             /* separated and surrounded by spaces */
  const char *split[MAX_SPLITS]; /* patterns; each splits the pieces of the one before */
  bool ignore_merges, add_bos;
} family;

static const family families[] = {
    {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {" gpt-2 gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
     "mpt olmo jais trillion "
     "granite-docling exaone4 ",
     {GPT2},
     false,
     false},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {LLAMA3},
     true,
     true},
    {" dbrx smaug-bpe chatglm-bpe glm4 ", {LLAMA3}, false, false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ",
     {QWEN2},
     false,
     false},
    {" qwen35 ", {QWEN35}, false, false},
    {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     {"\\p{N}{1,3}", CJK_RUN, DEEPSEEK_MAIN},
     false,
     false},
    {" deepseek-llm ",
     {"[\\r\\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, "\\s+$", DEEPSEEK_CJK, "\\p{N}+"},
     false,
     false},
    {" deepseek-coder ",
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"},
     false,
     false},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     {"\\p{N}", GPT2},
     false,
     false},
    {" gpt-4o o200k llama4 kanana2 talkie minimax-m2 ", {O200K}, false, false},
    {" tekken ", {TEKKEN}, true, true},
    {" poro-chat bloom gpt3-finnish ", {BLOOM}, false, false},
    {" viking ", {BLOOM, "\\p{N}"}, false, false},
    {" bailingmoe bailingmoe2 llada-moe ", {BAILING}, false, false},
    {" seed-coder ", {SEED}, false, false},
    {" kimi-k2 ", {KIMI}, false, false},
    {" exaone-moe ", {EXAONE_MOE}, false, false},
    {" jais-2 ", {JAIS2}, false, false},
    {" laguna ", {"[^\\n]+|[\\n]+", QWEN2}, false, false},
    {" ufakzeka ", {WORDS "|\\p{N}|" SYMBOLS "|" SPACES}, false, false},
    {" minicpm5 ",
     {"\\p{N}{1,3}", CONTRACTIONS "|" WORDS "|\\p{N}+|" SYMBOLS "|" SPACES},
     true,
     false},
};

static const family *find_family(pe_str name) {
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    for (const char *at = families[i].names; *at; at += strcspn(at, " ")) {
      at += strspn(at, " ");
      if (pe_str_same(pe_str_of(at, strcspn(at, " ")), name) && name.len) return &families[i];
    }
  return NULL;
}

/* ---- pipeline ------------------------------------------------------------------------------ */

static pe_status put_text(pe_buf *b, const char *text, pe_error *err) {
  pe_status rc = pe_buf_byte(b, '"', err);
  for (; !rc && *text; text++) {
    if (*text == '"' || *text == '\\') rc = pe_buf_byte(b, '\\', err);
    if (!rc) rc = pe_buf_byte(b, *text, err);
  }
  return rc ? rc : pe_buf_byte(b, '"', err);
}

static pe_status put_splits(pe_buf *b, const family *f, pe_error *err) {
  pe_status rc =
      pe_buf_printf(b, err, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
  for (int i = 0; !rc && i < MAX_SPLITS && f->split[i]; i++) {
    rc = pe_buf_printf(
        b, err,
        "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
    if (!rc) rc = put_text(b, f->split[i], err);
    if (!rc) rc = pe_buf_printf(b, err, "}},");
  }
  return rc ? rc
            : pe_buf_printf(
                  b, err,
                  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                  "\"decoder\":{\"type\":\"ByteLevel\"}}");
}

/* SentencePiece: spaces are U+2581, and `prefix` prepends one to each text. Gemma 4 first splits
 * `lines` from line feeds. */
static pe_status put_spaces(pe_buf *b, bool prefix, bool lines, pe_error *err) {
  static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},";
  static const char strip[] = ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";
  static const char split[] =
      "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"
      "\"pattern\":{\"Regex\":\"[^\\\\n]+|[\\\\n]+\"}},";
  return pe_buf_printf(
      b, err,
      "{%s\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s"
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},"
      "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},\"content\":\" \"},"
      "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}}",
      lines ? split : "", prefix ? prepend : "", prefix ? strip : "");
}

static pe_status read_pipeline(pe_tokenizer *t, const pe_buf *text, pe_error *err) {
  pe_arena a = {0};
  pe_json_value *v = NULL;
  pe_status rc = pe_json_parse(text->data, text->len, &a, &v, err);
  if (!rc) rc = pe_tokenizer_read_pipeline(t, v, err);
  pe_arena_free(&a);
  return rc;
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

static pe_status find_array(const pe_gguf *g, const char *key, bool text, uint64_t count,
                            const pe_gguf_meta **out, pe_error *err) {
  const pe_gguf_meta *m = pe_gguf_find(g, key);
  *out = m;
  if (!m) return PE_OK;
  if (m->type != PE_GGUF_ARRAY || (m->element == PE_GGUF_STRING) != text)
    return pe_fail(err, PE_EFORMAT, "%s must be an array of %s", key, text ? "strings" : "numbers");
  if (count && m->count != count)
    return pe_fail(err, PE_EFORMAT, "%s has %llu elements, but the vocabulary has %llu tokens", key,
                   (unsigned long long)m->count, (unsigned long long)count);
  return PE_OK;
}

static pe_status need_array(const pe_gguf *g, const char *key, bool text, uint64_t count,
                            const pe_gguf_meta **out, pe_error *err) {
  pe_status rc = find_array(g, key, text, count, out, err);
  return rc || *out ? rc : pe_fail(err, PE_EFORMAT, "the file has no %s", key);
}

static pe_status read_tokens(pe_tokenizer *t, const pe_gguf_meta *tokens, pe_error *err) {
  const uint8_t *at = tokens->data;
  pe_status rc = PE_OK;
  for (uint64_t i = 0; !rc && i < tokens->count; i++) {
    pe_str s = pe_gguf_str_next(&at);
    size_t valid = s.len ? pe_utf8_valid(s.at, s.len) : 0;
    if (valid != s.len) /* decoded text would not be UTF-8 either */
      return pe_fail(err, PE_EFORMAT, "token %llu is not UTF-8: byte 0x%02x at offset %zu of %zu",
                     (unsigned long long)i, (unsigned char)s.at[valid], valid, s.len);
    rc = pe_vocab_add(&t->vocab, s, (int64_t)i, err);
  }
  return rc ? rc : pe_vocab_finish(&t->vocab, err);
}

/* Tokens that end a turn or a text are special even if a careless conversion made them plain. */
static bool ends_turn(pe_str s) {
  static const char mark[][32] = {
      "<|eot_id|>",
      "<|im_end|>",
      "<|end|>",
      "<end_of_turn>",
      "<turn|>",
      "<|endoftext|>",
      "<|end_of_text|>",
      "<|eom_id|>",
      "<EOT>",
      "_<EOT>",
      "[EOT]",
      "[EOS]",
      "<eos>",
      "</s>",
      "<|return|>",
      "<|call|>",
      "<|flush|>",
      "<|calls|>",
      "<end_of_utterance>",
      "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};
  if (!s.len || s.len >= sizeof *mark) return false;
  for (size_t i = 0; i < sizeof mark / sizeof *mark; i++) {
    const bool as_long = mark[i][s.len - 1] && !mark[i][s.len]; /* every token comes here */
    if (as_long && !memcmp(mark[i], s.at, s.len)) return true;
  }
  return false;
}

/* Phi-3 drops white space after its special tokens; only the model's name reveals it. */
static bool is_phi3(const pe_gguf *g) {
  pe_str name;
  if (!pe_gguf_str(g, "general.name", &name)) return false;
  for (size_t i = 0; i + 4 <= name.len; i++) {
    const char *p = name.at + i;
    if ((p[0] | 32) != 'p' || (p[1] | 32) != 'h' || (p[2] | 32) != 'i') continue;
    if (p[3] == '3' || (p[3] == '-' && i + 5 <= name.len && p[4] == '3')) return true;
  }
  return false;
}

static pe_status read_added(pe_tokenizer *t, const pe_gguf *g, const pe_gguf_meta *types,
                            pe_error *err) {
  bool phi3 = is_phi3(g);
  pe_status rc = PE_OK;
  for (int32_t id = 0; !rc && types && id < t->vocab.size; id++) {
    pe_str text = pe_vocab_text(&t->vocab, id);
    int64_t type = pe_gguf_int_at(types, (uint64_t)id);
    if (type != CONTROL && type != UNKNOWN && ends_turn(text)) type = CONTROL;
    if (!text.len || (type != CONTROL && type != UNKNOWN && type != USER_DEFINED)) continue;
    pe_added_token a = {.content = text, .special = type != USER_DEFINED};
    a.rstrip = phi3 && !pe_str_eq(text, "<unk>") && !pe_str_eq(text, "<s>") &&
               !pe_str_eq(text, "<|endoftext|>");
    rc = pe_added_put(&t->added, a, err);
  }
  return rc ? rc : pe_added_finish(&t->added, &t->vocab, t->normalizer, err);
}

static pe_status read_special(pe_tokenizer *t, const pe_gguf *g, const char *key, pe_special which,
                              int64_t otherwise, pe_error *err) {
  int64_t id = otherwise;
  pe_gguf_int(g, key, &id);
  if (id < -1 || id >= t->vocab.size)
    return pe_fail(err, PE_EFORMAT, "%s is %lld, but the vocabulary has %d tokens", key,
                   (long long)id, t->vocab.size);
  t->special[which] = (int32_t)id;
  return PE_OK;
}

/* The special tokens to put around a text. */
static pe_status read_ends(pe_tokenizer *t, const pe_gguf *g, bool add_bos, pe_error *err) {
  bool add_eos = false;
  pe_gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos);
  pe_gguf_bool(g, "tokenizer.ggml.add_eos_token", &add_eos);
  const struct {
    bool add;
    int32_t id;
    pe_ids *to;
    const char *name;
  } end[] = {{add_bos, t->special[PE_BOS], &t->post.before, "begin"},
             {add_eos, t->special[PE_EOS], &t->post.after, "end"}};
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < 2; i++) {
    if (!end[i].add) continue;
    if (end[i].id < 0)
      return pe_fail(err, PE_EFORMAT, "the file asks for a %s token, but does not name one",
                     end[i].name);
    if (!(rc = pe_ids_reserve(end[i].to, 1, err))) pe_ids_put(end[i].to, end[i].id, 0);
  }
  return rc;
}

/* ---- models -------------------------------------------------------------------------------- */

/* "left right"; a token may contain a space, but cannot begin with one. */
static pe_status read_merge(const pe_tokenizer *t, pe_str s, pe_bpe_pair *p, pe_error *err) {
  const char *space = s.len > 1 ? memchr(s.at + 1, ' ', s.len - 1) : NULL;
  if (!space)
    return pe_fail(err, PE_EFORMAT, "merge '%.*s' must be two tokens with a space between them",
                   pe_str_clip(s), s.at);
  pe_str l = pe_str_of(s.at, (size_t)(space - s.at)), r = pe_str_of(space + 1, s.len - l.len - 1);
  p->left = pe_vocab_id(&t->vocab, l), p->right = pe_vocab_id(&t->vocab, r);
  if (p->left < 0 || p->right < 0)
    return pe_fail(err, PE_EFORMAT, "merge '%.*s' refers to a token that is not in the vocabulary",
                   pe_str_clip(s), s.at);
  return PE_OK;
}

static pe_status read_merges(pe_tokenizer *t, const pe_gguf *g, pe_error *err) {
  const pe_gguf_meta *m;
  pe_bpe_pair *pair = NULL;
  pe_status rc = need_array(g, "tokenizer.ggml.merges", true, 0, &m, err);
  if (rc) return rc;
  if (!(pair = pe_calloc(m->count, sizeof *pair))) return pe_nomem(err, "merges");
  const uint8_t *at = m->data;
  for (uint64_t i = 0; !rc && i < m->count; i++)
    rc = read_merge(t, pe_gguf_str_next(&at), &pair[i], err);
  if (!rc) rc = pe_bpe_finish(&t->bpe, pair, m->count, err);
  pe_free(pair);
  return rc;
}

static pe_status read_bpe(pe_tokenizer *t, const pe_gguf *g, bool *add_bos, pe_error *err) {
  pe_str name = pe_str_c("default");
  pe_gguf_str(g, "tokenizer.ggml.pre", &name);
  const family *f = find_family(name);
  if (!f)
    return pe_fail(err, PE_EUNSUPPORTED, "unknown pre-tokenizer '%.*s' (tokenizer.ggml.pre)",
                   pe_str_clip(name), name.at);
  *add_bos = f->add_bos;
  pe_buf text = {0};
  pe_status rc = put_splits(&text, f, err);
  if (!rc) rc = read_pipeline(t, &text, err);
  pe_buf_free(&text);
  t->bpe = (pe_bpe){
      .vocab = &t->vocab, .unk = PE_BPE_NO_UNK, .ignore_merges = f->ignore_merges, .raw = true};
  return rc ? rc : read_merges(t, g, err);
}

static pe_status read_spm(pe_tokenizer *t, const pe_gguf *g, bool *add_bos, pe_error *err) {
  bool prefix = true;
  pe_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
  *add_bos = true;
  const pe_gguf_meta *m;
  pe_status rc = need_array(g, "tokenizer.ggml.scores", false, (uint64_t)t->vocab.size, &m, err);
  if (rc) return rc;
  pe_buf text = {0};
  if (!(rc = put_spaces(&text, prefix, false, err))) rc = read_pipeline(t, &text, err);
  pe_buf_free(&text);
  float *score = pe_calloc((size_t)t->vocab.size, sizeof *score);
  if (!rc && !score) rc = pe_nomem(err, "scores");
  for (int32_t i = 0; !rc && i < t->vocab.size; i++)
    score[i] = (float)pe_gguf_float_at(m, (uint64_t)i);
  t->bpe = (pe_bpe){.vocab = &t->vocab, .unk = t->special[PE_UNK], .byte_fallback = true};
  if (!rc) rc = pe_bpe_finish_scores(&t->bpe, score, err);
  pe_free(score);
  return rc;
}

static pe_status read_gemma4(pe_tokenizer *t, const pe_gguf *g, bool *add_bos, pe_error *err) {
  *add_bos = true;
  pe_buf text = {0};
  pe_status rc = put_spaces(&text, false, true, err);
  if (!rc) rc = read_pipeline(t, &text, err);
  pe_buf_free(&text);
  t->bpe = (pe_bpe){
      .vocab = &t->vocab, .unk = PE_BPE_NO_UNK, .byte_fallback = true, .whole_newlines = true};
  return rc ? rc : read_merges(t, g, err);
}

static const struct {
  const char *name;
  pe_status (*read)(pe_tokenizer *, const pe_gguf *, bool *add_bos, pe_error *);
} kinds[] = {{"gpt2", read_bpe}, {"llama", read_spm}, {"gemma4", read_gemma4}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static pe_status read_kind(pe_tokenizer *t, const pe_gguf *g, int kind, pe_error *err) {
  bool spm = kinds[kind].read == read_spm, add_bos = false;
  const pe_gguf_meta *tokens, *types;
  pe_status rc = need_array(g, "tokenizer.ggml.tokens", true, 0, &tokens, err);
  if (!rc) rc = find_array(g, "tokenizer.ggml.token_type", false, tokens->count, &types, err);
  if (!rc) rc = read_tokens(t, tokens, err);
  if (!rc)
    rc = read_special(t, g, "tokenizer.ggml.bos_token_id", PE_BOS,
                      spm && t->vocab.size > 1 ? 1 : -1, err);
  if (!rc)
    rc = read_special(t, g, "tokenizer.ggml.eos_token_id", PE_EOS,
                      spm && t->vocab.size > 2 ? 2 : -1, err);
  if (!rc)
    rc = read_special(t, g, "tokenizer.ggml.unknown_token_id", PE_UNK,
                      spm && t->vocab.size > 0 ? 0 : -1, err);
  if (!rc) rc = read_special(t, g, "tokenizer.ggml.padding_token_id", PE_PAD, -1, err);
  t->kind = PE_TOKENIZER_BPE;
  if (!rc) rc = kinds[kind].read(t, g, &add_bos, err);
  if (!rc) rc = read_added(t, g, types, err);
  return rc ? rc : read_ends(t, g, add_bos, err);
}

pe_status pe_tokenizer_read_gguf(const pe_gguf *g, pe_tokenizer **out, pe_error *err) {
  pe_str model;
  int kind = 0;
  if (!pe_gguf_str(g, "tokenizer.ggml.model", &model))
    return pe_fail(err, PE_ENOTFOUND, "the file has no tokenizer (tokenizer.ggml.model)");
  while (kind < KINDS && !pe_str_eq(model, kinds[kind].name)) kind++;
  if (kind == KINDS)
    return pe_fail(
        err, PE_EUNSUPPORTED,
        "unsupported tokenizer '%.*s' (tokenizer.ggml.model); gpt2, llama and gemma4 are supported",
        pe_str_clip(model), model.at);
  pe_tokenizer *t = NULL;
  pe_status rc = pe_tokenizer_new(&t, err);
  if (!rc) rc = read_kind(t, g, kind, err);
  if (rc)
    pe_tokenizer_release(t);
  else
    *out = t;
  return rc;
}
