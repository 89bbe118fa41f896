/* Weights of all formats: directories, joined quantisation, refusals, and every golden tensor. */
#include "check.h"
#include "gguf_writer.h"
#include "runtime/weights/weights.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a temporary folder ---------------------------------------------------------------------- */

static char folder[64];

static void make_folder(void) {
  const char *tmp = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/perigee-weights-XXXXXX",
           tmp && strlen(tmp) < 30 ? tmp : "/tmp");
  if (!mkdtemp(folder)) abort();
}

static void remove_folder(void) {
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (e->d_name[0] != '.' || strlen(e->d_name) > 2) unlink(path);
  }
  if (d) closedir(d);
  rmdir(folder);
}

static void write_bytes(const char *name, const void *data, size_t len) {
  char path[400];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wb");
  if (!f) abort();
  fwrite(data, 1, len, f);
  fclose(f);
}

static void write_text(const char *name, const char *text) {
  write_bytes(name, text, strlen(text));
}

/* A safetensors file whose header is followed by `bytes` bytes 0, 1, 2, ... */
static void write_tensors(const char *name, const char *header, size_t bytes) {
  size_t len = strlen(header);
  uint8_t *data = calloc(1, 8 + len + bytes);
  for (int i = 0; i < 8; i++) data[i] = (uint8_t)((uint64_t)len >> 8 * i);
  memcpy(data + 8, header, len);
  for (size_t i = 0; i < bytes; i++) data[8 + len + i] = (uint8_t)i;
  write_bytes(name, data, 8 + len + bytes);
  free(data);
}

static pe_status open_in(const char *name, pe_weights **out, pe_error *err) {
  char path[400];
  snprintf(path, sizeof path, "%s%s%s", folder, name[0] ? "/" : "", name);
  return pe_weights_open(path, out, err);
}

/* ---- golden values --------------------------------------------------------------------------- */

static uint32_t crc32_of(uint32_t crc, const void *data, size_t len) {
  static uint32_t table[256];
  if (!table[1])
    for (uint32_t i = 0; i < 256; i++) {
      table[i] = i;
      for (int k = 0; k < 8; k++)
        table[i] = table[i] & 1 ? table[i] >> 1 ^ 0xedb88320u : table[i] >> 1;
    }
  const uint8_t *p = data;
  crc = ~crc;
  while (len--) crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
  return ~crc;
}

static uint32_t digest(const pe_weight *t, uint32_t crc) {
  pe_error err = {0};
  size_t row = (size_t)t->cols;
  float *out = malloc((row * (size_t)t->rows + 1) * sizeof *out);
  /* in two pieces, to cross a boundary of rows */
  int64_t half = t->rows / 2;
  CHECK_OK(pe_weight_dequant(t, 0, half, out, &err), err);
  CHECK_OK(pe_weight_dequant(t, half, t->rows - half, out + (size_t)half * row, &err), err);
  crc = crc32_of(crc, out, row * (size_t)t->rows * sizeof *out);
  free(out);
  return crc;
}

static void check_plain(const pe_weights *w, const char *path, long count, uint32_t want) {
  uint32_t crc = 0;
  long seen = 0;
  for (size_t i = 0; i < w->count; i++) {
    if (w->sorted[i]->quant.kind != PE_QUANT_NONE) continue;
    crc = digest(w->sorted[i], crc);
    seen++;
  }
  CHECK_INT(seen, count);
  if (crc != want)
    check_failures++, printf("    %s: plain tensors have CRC %08x, not %08x\n", path, crc, want);
}

/* Checks every line of digests.txt whose file exists under root. Returns the number of
 * comparisons. */
static int check_digests(const char *root, int *absent) {
  char line[600], current[200] = "", path[200], name[300];
  int compared = 0, left = 0;
  long rows, cols;
  unsigned crc;
  pe_weights *w = NULL;
  pe_error err = {0};
  FILE *f = fopen("tests/data/digests.txt", "r");
  while (f && fgets(line, sizeof line, f)) {
    if (sscanf(line, "%199[^\t]\t%299[^\t]\t%ld\t%ld\t%x", path, name, &rows, &cols, &crc) != 5)
      continue;
    if (strcmp(path, current)) {
      char full[400];
      strcpy(current, path);
      snprintf(full, sizeof full, "%s/%s", root, path);
      pe_weights_release(w);
      w = NULL;
      if (access(full, F_OK))
        (*absent)++;
      else
        CHECK_OK(pe_weights_open(full, &w, &err), err);
      left = 0;
      for (size_t i = 0; w && i < w->count; i++) left += w->list[i].quant.kind != PE_QUANT_NONE;
    }
    if (!w) continue;
    compared++;
    if (!strcmp(name, "*")) {
      CHECK_INT(left, 0); /* the table had every quantised tensor */
      check_plain(w, path, rows, crc);
      continue;
    }
    const pe_weight *t = pe_weights_find(w, name);
    if (!t) {
      check_failures++, printf("    %s: no '%s'\n", path, name);
      continue;
    }
    left--;
    CHECK(t->quant.kind != PE_QUANT_NONE);
    CHECK_INT(t->rows, rows);
    CHECK_INT(t->cols, cols);
    uint32_t got = digest(t, 0);
    if (got != crc)
      check_failures++, printf("    %s: '%s' has CRC %08x, not %08x\n", path, name, got, crc);
  }
  pe_weights_release(w);
  if (f) fclose(f);
  return compared;
}

static void golden_here(void) {
  int absent = 0;
  CHECK_INT(check_digests("tests", &absent), 610);
  CHECK(absent > 0);
}

static void golden_shared(void) {
  if (access("../shared/golden", F_OK)) CHECK_SKIP("no ../shared/golden");
  int absent = 0, compared = check_digests("../shared", &absent);
  CHECK_INT(absent, 0);
  CHECK_INT(compared, 1059);
}

/* ---- directories ----------------------------------------------------------------------------- */

#define U8(name, at) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" at "]}"
#define INDEX "model.safetensors.index.json"

static void which_files(void) {
  pe_weights *w;
  pe_error err = {0};
  make_folder();
  CHECK_FAILS(open_in("", &w, &err), PE_ENOTFOUND, err, "contains no weights");
  CHECK_FAILS(open_in("absent", &w, &err), PE_EIO, err, "absent");
  write_text("pytorch_model.bin", "x");
  CHECK_FAILS(open_in("", &w, &err), PE_EUNSUPPORTED, err,
              "pickled PyTorch files (pytorch_model.bin)");
  CHECK_FAILS(open_in("pytorch_model.bin", &w, &err), PE_EUNSUPPORTED, err, "mlx_lm.convert");
  write_tensors("consolidated.safetensors", "{" U8("c", "0,4") "}", 4);
  CHECK_FAILS(open_in("", &w, &err), PE_EUNSUPPORTED, err,
              "contains only consolidated.safetensors");
  write_text("some.gguf", "x");
  CHECK_FAILS(open_in("", &w, &err), PE_ENOTFOUND, err, "some.gguf");
  CHECK_FAILS(open_in("some.gguf", &w, &err), PE_EFORMAT, err, "not a GGUF file");
  write_text("some.gguf", "version https://git-lfs.github.com/spec/v1\n");
  CHECK_FAILS(open_in("some.gguf", &w, &err), PE_EFORMAT, err, "git lfs pull");
  write_text("p.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  CHECK_FAILS(open_in("p.safetensors", &w, &err), PE_EFORMAT, err, "git lfs pull");
  remove_folder();
  make_folder();
  write_tensors("consolidated.safetensors", "{" U8("c", "0,4") "}", 4);
  write_text("notes.txt", "x");
  CHECK_FAILS(open_in("notes.txt", &w, &err), PE_EFORMAT, err, "neither");
  write_tensors("other.safetensors", "{" U8("o", "0,4") "}", 4);
  CHECK_OK(open_in("", &w, &err), err);
  CHECK(pe_weights_find(w, "o") && !pe_weights_find(w, "c"));
  pe_weights_release(w);
  /* model*.safetensors: both, in order, and no others */
  write_tensors("model-b.safetensors", "{\"__metadata__\":{\"format\":\"mlx\"}," U8("b", "0,4") "}",
                4);
  write_tensors("model-a.safetensors", "{" U8("z", "0,4") "," U8("a", "4,8") "}", 8);
  CHECK_OK(open_in("", &w, &err), err);
  CHECK_INT(w->count, 3);
  CHECK_STR(w->list[0].name.at, "z"); /* in the order of the files, then of the header */
  CHECK_STR(w->list[1].name.at, "a");
  CHECK_STR(w->list[2].name.at, "b");
  CHECK_INT(w->bytes, 12);
  CHECK(!w->config && !pe_weights_gguf(w));
  pe_weights_release(w);
  write_tensors("model-c.safetensors", "{" U8("a", "0,4") "}", 4);
  CHECK_FAILS(open_in("", &w, &err), PE_EFORMAT, err, "'a' is in ");
  write_text("config.json", "{\"model_type\": \"tiny\"");
  CHECK_FAILS(open_in("", &w, &err), PE_EFORMAT, err, "config.json: line 1");
  remove_folder();
}

static void index_of_shards(void) {
  pe_weights *w;
  pe_error err = {0};
  make_folder();
  write_tensors("model-1.safetensors", "{" U8("a", "0,4") "}", 4);
  write_tensors("model-2.safetensors", "{" U8("b", "0,4") "}", 4);
  write_tensors("model-old.safetensors", "{" U8("b", "0,4") "}", 4); /* not named: not read */
  write_text("config.json", "{\"model_type\": \"tiny\", \"quantization\": null}");
  write_text(INDEX, "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"model-2."
                    "safetensors\",\"a\":\"model-1.safetensors\"}}");
  pe_status rc = open_in("", &w, &err);
  CHECK_OK(rc, err);
  if (!rc) {
    CHECK_INT(w->file_count, 2);
    CHECK_STR(w->list[0].name.at, "a");
    CHECK(pe_str_eq(pe_json_str(pe_json_get(w->config, "model_type"), ""), "tiny"));
    pe_weights_release(w);
  }
  static const struct {
    const char *index;
    pe_status code;
    const char *part;
  } bad[] = {
      {"{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-1.safetensors\"}}",
       PE_ENOTFOUND, "does not contain tensor 'b'"},
      {"{\"weight_map\":{\"a\":\"model-1.safetensors\",\"x\":\"model-2.safetensors\"}}",
       PE_ENOTFOUND, "does not contain tensor 'x'"},
      {"{\"weight_map\":{\"a\":\"model-2.safetensors\",\"b\":\"model-1.safetensors\"}}",
       PE_ENOTFOUND, "it is in "},
      {"{\"weight_map\":{\"a\":\"model-3.safetensors\"}}", PE_ENOTFOUND, "model-3.safetensors"},
      {"{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}", PE_EFORMAT, "not a plain file name"},
      {"{\"weight_map\":{\"a\":\"\"}}", PE_EFORMAT, "not a plain file name"},
      {"{\"weight_map\":{\"a\":1}}", PE_EFORMAT, INDEX},
      {"{\"weight_map\":{}}", PE_EFORMAT, "weight_map is missing or empty"},
      {"{\"weight_map\":[]}", PE_EFORMAT, "weight_map is missing or empty"},
      {"{\"weight_map\":{}", PE_EFORMAT, INDEX},
      {"", PE_EFORMAT, INDEX},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_text(INDEX, bad[i].index);
    CHECK_FAILS(open_in("", &w, &err), bad[i].code, err, bad[i].part);
  }
  remove_folder();
}

/* ---- joined quantisation --------------------------------------------------------------------- */

/* K = 64 values, 4 bits: 8 words, 2 groups of 32; two rows. */
#define WORDS "\"m.weight\":{\"dtype\":\"U32\",\"shape\":[2,8],\"data_offsets\":[0,64]}"
#define SCALES(dtype, bytes)                                                                       \
  "\"m.scales\":{\"dtype\":\"" dtype "\",\"shape\":[2,2],\"data_offsets\":[64," bytes "]}"
#define BIASES "\"m.biases\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[72,80]}"
#define AFFINE "{" WORDS "," SCALES("BF16", "72") "," BIASES "}"
#define MXFP4 "{" WORDS "," SCALES("U8", "68") "}"

static void joined(void) {
  pe_weights *w;
  pe_error err = {0};
  make_folder();
  write_tensors("model.safetensors", AFFINE, 80);
  write_text("config.json", "{\"quantization\":{\"group_size\":32,\"bits\":4}}");
  pe_status rc = open_in("", &w, &err);
  CHECK_OK(rc, err);
  if (!rc) {
    const pe_weight *t = pe_weights_find(w, "m.weight");
    char label[PE_WEIGHT_LABEL];
    CHECK_INT(w->count, 1);
    CHECK(t && t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 64 && t->rows == 2 &&
          t->cols == 64);
    CHECK_INT(t->part_count, 3);
    CHECK_INT(t->bytes, 80);
    CHECK_INT(t->scales.bytes, 8);
    pe_weight_label(t, label);
    CHECK_STR(label, "affine 4-bit group 32");
    float out[64];
    CHECK_FAILS(pe_weight_dequant(t, 1, 2, out, &err), PE_EARG, err,
                "2 rows from row 1: tensor 'm.weight' has 2 rows");
    CHECK_FAILS(pe_weight_dequant(t, -1, 1, out, &err), PE_EARG, err, "row -1");
    CHECK_FAILS(pe_weight_dequant(t, INT64_MAX, INT64_MAX, out, &err), PE_EARG, err, "has 2 rows");
    CHECK_OK(pe_weight_dequant(t, 2, 0, out, &err), err);
    pe_weights_release(w);
  }
  write_tensors("model.safetensors",
                "{\"x_blocks\":{\"dtype\":\"U8\",\"shape\":[1,2,3,16],\"data_offsets\":[0,96]},"
                "\"x_scales\":{\"dtype\":\"U8\",\"shape\":[1,2,3],\"data_offsets\":[96,102]}}",
                102);
  rc = open_in("", &w, &err);
  CHECK_OK(rc, err);
  if (!rc) {
    const pe_weight *t = pe_weights_find(w, "x");
    CHECK(t && t->quant.kind == PE_QUANT_MXFP4 && t->rank == 3 && t->shape[2] == 96 &&
          t->rows == 2);
    CHECK(!pe_weights_find(w, "x_blocks") && !pe_weights_find(w, "x_scales"));
    pe_weights_release(w);
  }
  remove_folder();
}

#define NVFP4(global)                                                                              \
  "{" WORDS ",\"m.scales\":{\"dtype\":\"U8\",\"shape\":[2,4],\"data_offsets\":[64,72]}" global "}"
#define GLOBAL(dtype, shape)                                                                       \
  ",\"m.global_scale\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[72,76]}"

/* NVFP4 has a scale for the whole tensor, over the largest scale times the largest code. */
static void joined_global(void) {
  static const struct {
    const char *tensors;
    float global;
    int parts;
  } good[] = {{NVFP4(""), 1, 2},
              {NVFP4(GLOBAL("F32", "[]")), 0x1.949290p+23f / (448.0f * 6.0f), 3}};
  static const char *const bad[] = {NVFP4(GLOBAL("I32", "[]")), NVFP4(GLOBAL("BF16", "[2]"))};
  pe_weights *w;
  pe_error err = {0};
  make_folder();
  write_text("config.json", "{\"quantization\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"}}");
  for (int i = 0; i < 2; i++) {
    write_tensors("model.safetensors", good[i].tensors, i ? 76 : 72);
    pe_status rc = open_in("", &w, &err);
    CHECK_OK(rc, err);
    if (rc) continue;
    const pe_weight *t = pe_weights_find(w, "m.weight");
    CHECK_INT(w->count, 1);
    CHECK_INT(t->part_count, good[i].parts);
    CHECK_NEAR(t->global, good[i].global, 0);
    pe_weights_release(w);
    write_tensors("model.safetensors", bad[i], 76);
    CHECK_FAILS(open_in("", &w, &err), PE_ESHAPE, err, "global_scale must be a single F32");
  }
  remove_folder();
}

static void config_and_file(void) {
  static const struct {
    const char *tensors, *config;
    pe_status code;
    const char *part; /* of the error, or of the label */
  } cases[] = {
      {AFFINE, "{}", PE_EFORMAT, "'m': 8 words and 2 scales per row fit 2 layouts"},
      {AFFINE, "{\"quantization\":{\"group_size\":64,\"bits\":2}}", PE_OK, "affine 2-bit group 64"},
      {AFFINE, "{\"quantization_config\":{\"group_size\":32,\"bits\":4}}", PE_OK,
       "affine 4-bit group 32"},
      {AFFINE, "{\"quantization\":{\"group_size\":64,\"bits\":4}}", PE_ESHAPE,
       "with 4 bits in groups of 64 (config.json), rows of 8 words need 1 scales, but the file has "
       "2"},
      {AFFINE,
       "{\"quantization\":{\"group_size\":64,\"bits\":8,\"m\":{\"group_size\":32,\"bits\":4}}}",
       PE_OK, "affine 4-bit group 32"},
      {AFFINE,
       "{\"quantization\":{\"group_size\":64,\"bits\":8,\"language_model.model.m\":{\"group_size\":"
       "32,\"bits\":4}}}",
       PE_OK, "affine 4-bit group 32"},
      {AFFINE,
       "{\"quantization\":{\"group_size\":64,\"bits\":8,\"model.m\":{\"group_size\":64,\"bits\":2},"
       "\"m\":{\"group_size\":32,\"bits\":4}}}",
       PE_OK, "affine 4-bit group 32"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"vision.m\":{\"bits\":8}}}", PE_OK,
       "affine 4-bit group 32"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":false}}", PE_EFORMAT,
       "'m': config.json says that it is not quantised"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":true}}", PE_OK,
       "affine 4-bit group 32"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":7}}", PE_EUNSUPPORTED,
       "7 bits in groups of 32"},
      {AFFINE, "{\"quantization\":{\"group_size\":99999999999,\"bits\":4}}", PE_EUNSUPPORTED,
       "groups of 99999999999"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"magic\"}}",
       PE_EUNSUPPORTED, "mode, 'magic'"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
       PE_EUNSUPPORTED, "and BF16 scales"},
      {AFFINE, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"Q4_0\"}}",
       PE_EUNSUPPORTED, "mode, 'Q4_0'"},
      {MXFP4, "{}", PE_OK, "mxfp4"},
      {MXFP4, "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}", PE_OK,
       "mxfp4"},
      {MXFP4, "{\"quantization\":{\"mode\":\"mxfp4\"}}", PE_OK, "mxfp4"},
      {MXFP4,
       "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\",\"m\":{\"group_size\":"
       "32,\"bits\":4}}}",
       PE_EUNSUPPORTED, "affine with 4 bits"},
      {MXFP4, "{\"quantization\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"}}", PE_ESHAPE,
       "need 4 scales, but the file has 2"},
      {"{" WORDS "," SCALES("BF16", "72") "}", "{}", PE_EFORMAT, "but no biases"},
      {"{" WORDS "," SCALES("U8", "68") "," BIASES "}", "{}", PE_EFORMAT, "but also biases"},
      {"{" WORDS ",\"m.scales\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[64,76]}}",
       "{}", PE_ESHAPE, "[2, 8], 'm.scales' has shape [3, 2]"},
      {"{" WORDS ",\"m.scales\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[64,68]}}", "{}",
       PE_ESHAPE, "[2]"},
      {"{" WORDS ",\"m.scales\":{\"dtype\":\"BF16\",\"shape\":[2,0],\"data_offsets\":[64,64]}}",
       "{}", PE_ESHAPE, "[2, 0]"},
      {"{\"m.weight\":{\"dtype\":\"U32\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]},"
       "\"m.scales\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]}}",
       "{}", PE_ESHAPE, "fit together"},
      {"{" WORDS "}", "{\"quantization\":{\"group_size\":32,\"bits\":4}}", PE_ENOTFOUND,
       "a packed weight but no scales"},
      {"{\"m.weight\":{\"dtype\":\"BF16\",\"shape\":[2,8],\"data_offsets\":[0,32]}}",
       "{\"quantization\":{\"group_size\":32,\"bits\":4}}", PE_OK, "BF16"},
      {"{\"m.weight\":{\"dtype\":\"BF16\",\"shape\":[2,8],\"data_offsets\":[0,32]}}",
       "{\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":{\"bits\":8}}}", PE_EFORMAT,
       "config.json says 8 bits, but the weight is BF16"},
      {"{\"m_blocks\":{\"dtype\":\"U8\",\"shape\":[2,3,8],\"data_offsets\":[0,48]},\"m_scales\":{"
       "\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[48,54]}}",
       "{}", PE_ESHAPE, "[2, 3, 8]"},
      {"{\"m_blocks\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904,16],\"data_offsets\":[0,0]"
       "},\"m_scales\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]}"
       "}",
       "{}", PE_ESHAPE, "fit together"},
  };
  make_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_weights *w;
    pe_error err = {0};
    char label[PE_WEIGHT_LABEL];
    write_tensors("model.safetensors", cases[i].tensors, 96);
    write_text("config.json", cases[i].config);
    pe_status rc = open_in("", &w, &err);
    if (cases[i].code) {
      CHECK_FAILS(rc, cases[i].code, err, cases[i].part);
      continue;
    }
    CHECK_OK(rc, err);
    if (rc) continue;
    pe_weight_label(&w->list[0], label);
    CHECK_STR(label, cases[i].part);
    pe_weights_release(w);
  }
  remove_folder();
}

static void refusals(void) {
  static const struct {
    const char *tensor, *config, *part;
  } cases[] = {
      {"m", "{\"quantization_config\":{\"quant_method\":\"awq\"}}", "AWQ (quant_method 'awq')"},
      {"m", "{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "GPTQ"},
      {"m", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "FP8 blocks"},
      {"m", "{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}", "bitsandbytes"},
      {"m", "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}",
       "compressed-tensors"},
      {"m", "{\"text_config\":{\"quantization_config\":{\"quant_method\":\"modelopt\"}}}",
       "ModelOpt"},
      {"m", "{\"quantization_config\":{\"quant_method\":\"brand-new\"}}", "'brand-new'"},
      {"m.qweight", "{}", "AWQ or GPTQ (tensor 'm.qweight')"},
      {"m.weight_scale_inv", "{}", "FP8 blocks"},
      {"m.weight_packed", "{}", "compressed-tensors"},
      {"m.weight.absmax", "{}", "bitsandbytes"},
      {"m.weight_scale", "{}", "FP8"},
  };
  make_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_weights *w;
    pe_error err = {0};
    char header[200];
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", cases[i].tensor);
    write_tensors("model.safetensors", header, 4);
    write_text("config.json", cases[i].config);
    CHECK_FAILS(open_in("", &w, &err), PE_EUNSUPPORTED, err, cases[i].part);
    CHECK_FAILS(open_in("model.safetensors", &w, &err), PE_EUNSUPPORTED, err, "mlx_lm.convert");
  }
  remove_folder();
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static void write_part(const char *name, int no, int count, int total, const char *tensor,
                       uint32_t type) {
  writer w;
  put_header(&w, 3, 1, 3);
  put_key(&w, "split.no", PE_GGUF_U16), put(&w, (uint64_t)no, 2);
  put_key(&w, "split.count", PE_GGUF_U16), put(&w, (uint64_t)count, 2);
  put_key(&w, "split.tensors.count", PE_GGUF_I32), put(&w, (uint64_t)total, 4);
  put_tensor(&w, tensor, 1, (uint64_t[]){256}, type, 0);
  put_data(&w, 32, 1024);
  write_bytes(name, w.data, w.len);
}

static void split_gguf(void) {
  pe_weights *w;
  pe_error err = {0};
  make_folder();
  write_part("t-00001-of-00002.gguf", 0, 2, 2, "a", 0);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EIO, err, "t-00002-of-00002.gguf: ");
  write_part("t-00002-of-00002.gguf", 1, 2, 2, "b", 12);
  for (int part = 1; part <= 2; part++) {
    pe_status rc = open_in(part == 1 ? "t-00001-of-00002.gguf" : "t-00002-of-00002.gguf", &w, &err);
    CHECK_OK(rc, err);
    if (rc) continue;
    CHECK_INT(w->count, 2);
    CHECK_INT(w->file_count, 2);
    CHECK_INT(pe_weights_find(w, "b")->quant.kind, PE_QUANT_Q4_K);
    CHECK(pe_weights_gguf(w) && pe_weights_gguf(w) == w->files[0].gguf);
    pe_weights_release(w);
  }
  write_part("whole.gguf", 0, 2, 2, "a", 0);
  CHECK_FAILS(open_in("whole.gguf", &w, &err), PE_EFORMAT, err, "one of 2 parts");
  write_part("t-00002-of-00002.gguf", 0, 2, 2, "b", 0);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EFORMAT, err, "split.no is 0");
  write_part("t-00002-of-00002.gguf", 1, 3, 2, "b", 0);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EFORMAT, err,
              "split.count is 3, but the name says 2");
  write_part("t-00002-of-00002.gguf", 1, 2, 2, "a", 0);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EFORMAT, err, "'a' is in ");
  write_part("t-00002-of-00002.gguf", 1, 2, 2, "b", 16);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EUNSUPPORTED, err,
              "'b' has GGUF type IQ2_XXS");
  write_part("t-00001-of-00002.gguf", 0, 2, 5, "a", 0);
  write_part("t-00002-of-00002.gguf", 1, 2, 5, "b", 0);
  CHECK_FAILS(open_in("t-00001-of-00002.gguf", &w, &err), PE_EFORMAT, err,
              "split.tensors.count is 5, but the 2 parts contain 2 tensors");
  remove_folder();
}

/* ---- other ----------------------------------------------------------------------------------- */

static void summary(void) {
  pe_weights *w;
  pe_weights_kind *kinds;
  pe_error err = {0};
  size_t n;
  pe_status rc = pe_weights_open("tests/golden/llama-mlx-mixed-mxfp4", &w, &err);
  CHECK_OK(rc, err);
  if (rc) return;
  CHECK_OK(pe_weights_summary(w, &kinds, &n, &err), err);
  CHECK_INT(n, 3);
  CHECK_STR(kinds[0].label, "mxfp4");
  CHECK_INT(kinds[0].count, 13);
  CHECK_INT(kinds[0].values, 61440);
  CHECK_STR(kinds[2].label, "affine 8-bit group 64");
  CHECK_INT(kinds[0].bytes + kinds[1].bytes + kinds[2].bytes, w->bytes);
  pe_free(kinds);
  pe_weights_release(w);
}

static void no_memory(void) {
  static const char *const paths[] = {
      "tests/golden/qwen2", "tests/golden/llama-mlx-mixed", "tests/golden/gpt_oss-mxfp4",
      "tests/golden/llama-one/model.safetensors", "tests/golden-gguf/llama-Q4_0.gguf"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
    for (int64_t n = 1;; n++) {
      pe_weights *w = NULL;
      pe_error err = {0};
      int64_t live = pe_alloc_live();
      pe_alloc_fail_at(n);
      pe_status rc = pe_weights_open(paths[i], &w, &err);
      pe_alloc_fail_at(0);
      if (rc == PE_OK) {
        CHECK(n > 10);
        pe_weights_release(w);
        break;
      }
      CHECK_INT(rc, PE_ENOMEM);
      CHECK_INT(pe_alloc_live(), live);
    }
}

/* A mutated header with all joined formats gives an error, or weights that decode to the last
 * row. */
static void mutants(void) {
  static const char header[] = "{" WORDS "," SCALES(
      "BF16", "72") "," BIASES ","
                    "\"x_blocks\":{\"dtype\":\"U8\",\"shape\":[1,1,16],\"data_offsets\":[80,96]},"
                    "\"x_scales\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[96,97]},"
                    "\"y\":{\"dtype\":\"F8_E5M2\",\"shape\":[3],\"data_offsets\":[97,100]}}";
  uint64_t rng = 88172645463325252u;
  int opened = 0;
  make_folder();
  write_text("config.json", "{\"quantization\":{\"group_size\":32,\"bits\":4}}");
  for (int round = 0; round < 3000; round++) {
    char text[sizeof header];
    pe_weights *w;
    pe_error err = {0};
    memcpy(text, header, sizeof header);
    for (int k = 0; k <= round % 2; k++) {
      rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
      text[rng % (sizeof header - 1)] = "0123456789,\"x_UF"[rng >> 32 & 15];
    }
    write_tensors("model.safetensors", text, 100);
    if (open_in("", &w, &err)) continue;
    opened++;
    for (size_t i = 0; i < w->count; i++) digest(&w->list[i], 0);
    pe_weights_release(w);
  }
  CHECK(opened > 100 && opened < 2900);
  remove_folder();
}

static const check_test tests[] = {
    {"golden values", golden_here},
    {"golden values of ../shared", golden_shared},
    {"which files", which_files},
    {"index", index_of_shards},
    {"joined", joined},
    {"joined global scale", joined_global},
    {"config and file", config_and_file},
    {"refusals", refusals},
    {"split gguf", split_gguf},
    {"summary", summary},
    {"no memory", no_memory},
    {"mutants", mutants},
};
CHECK_MAIN("weights", tests)
