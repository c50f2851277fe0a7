/* The pre-tokenizers' regular expressions (facts of the published tokenizers: spec/qwen4exp.md 6.1 for qwen35 and
 * qwen2; the tokenizer.json of GPT-2, Llama 3 and SmolLM2; llama.cpp's "default") and their execution with PCRE2.
 *
 * White space is spelled out as Unicode's White_Space property, because PCRE2's \s differs from it (U+180E). */
#include "text/pretoken.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define WS "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define SHORT_FORMS "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT2 SHORT_FORMS "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+"

enum { MAX_STEPS = 4 };

static const struct form {
    const char *name;
    bool normalises, whole_pieces;
    const char *steps[MAX_STEPS]; /* each cuts the pieces that the one before left */
} forms[] = {
    {"qwen35",
     true,
     false,
     {"(?i:" SHORT_FORMS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
      "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"qwen2",
     true,
     false,
     {"(?i:" SHORT_FORMS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"llama-bpe",
     false,
     true,
     {"(?i:" SHORT_FORMS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"gpt2", false, false, {GPT2}},
    {"smollm", false, false, {"\\p{N}", GPT2}},
    {"default", false, false, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

struct st_pretoken {
    const struct form *form;
    pcre2_code *steps[MAX_STEPS];
    int count;
};

enum strata_result st_pretoken_create(const char *name, struct st_pretoken **out, struct strata_error *err)
{
    const struct form *form = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(forms[i].name, name) == 0)
            form = &forms[i];
    if (!form) {
        char shown[80];
        return st_fail(err, STRATA_E_UNSUPPORTED,
                       "pre-tokenizer \"%s\" is unknown (known: qwen35, qwen2, llama-bpe, gpt2, smollm, default)",
                       st_printable(shown, sizeof shown, name, strlen(name)));
    }
    struct st_pretoken *p = calloc(1, sizeof *p);
    if (!p)
        return st_fail(err, STRATA_E_MEMORY, "no memory for pre-tokenizer %s", form->name);
    p->form = form;
    for (; p->count < MAX_STEPS && form->steps[p->count]; p->count++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)form->steps[p->count], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                       &code, &at, NULL);
        if (!re) {
            char why[120] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            st_pretoken_free(p);
            return st_fail(err, STRATA_E_INTERNAL, "pre-tokenizer %s, expression %d, offset %zu: %s", form->name,
                           p->count, (size_t)at, why);
        }
        /* Without a JIT for this processor the matcher interprets: slower, same result. */
        pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
        p->steps[p->count] = re;
    }
    *out = p;
    return STRATA_OK;
}

void st_pretoken_free(struct st_pretoken *p)
{
    if (!p)
        return;
    for (int i = 0; i < MAX_STEPS; i++)
        pcre2_code_free(p->steps[i]);
    free(p);
}

bool st_pretoken_normalises(const struct st_pretoken *p)
{
    return p->form->normalises;
}

bool st_pretoken_whole_pieces(const struct st_pretoken *p)
{
    return p->form->whole_pieces;
}

struct cutter {
    uint32_t *ends;
    size_t count, capacity;
    pcre2_match_context *context;
    pcre2_match_data *match;
};

static bool cut_at(struct cutter *c, size_t end)
{
    if (c->count == c->capacity) {
        size_t more = c->capacity ? 2 * c->capacity : 64;
        uint32_t *grown = realloc(c->ends, more * sizeof *grown);
        if (!grown)
            return false;
        c->ends = grown;
        c->capacity = more;
    }
    c->ends[c->count++] = (uint32_t)end;
    return true;
}

/* Cuts [from, to) by one expression; what lies between matches is a piece too. */
static enum strata_result cut_piece(struct cutter *c, const pcre2_code *re, const char *text, size_t from, size_t to,
                                    struct strata_error *err)
{
    size_t at = 0, length = to - from;
    while (at < length) {
        int got = pcre2_match(re, (PCRE2_SPTR)text + from, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, c->match,
                              c->context);
        size_t start = length, end = length;
        if (got >= 0) {
            const PCRE2_SIZE *v = pcre2_get_ovector_pointer(c->match);
            start = v[0];
            end = v[1];
        } else if (got != PCRE2_ERROR_NOMATCH) {
            char why[120] = "";
            pcre2_get_error_message(got, (PCRE2_UCHAR *)why, sizeof why);
            return st_fail(err, STRATA_E_LIMIT, "cutting text into pieces at byte %zu: %s", from + at, why);
        }
        if ((start > at && !cut_at(c, from + start)) || (end > start && !cut_at(c, from + end)))
            return st_fail(err, STRATA_E_MEMORY, "no memory for the pieces of a text");
        at = end;
    }
    return STRATA_OK;
}

enum strata_result st_pretoken_cut(const struct st_pretoken *p, const char *text, size_t size, struct st_cuts *cuts,
                                   struct strata_error *err)
{
    struct cutter c = {.context = pcre2_match_context_create(NULL), .match = pcre2_match_data_create(1, NULL)};
    enum strata_result r = STRATA_OK;
    if (!c.context || !c.match || !cut_at(&c, size))
        r = st_fail(err, STRATA_E_MEMORY, "no memory to cut a text into pieces");
    /* The expressions look at each byte a small number of times; more than that would be a fault of ours. */
    if (c.context)
        pcre2_set_match_limit(c.context, (uint32_t)(size < (1u << 28) ? 8 * size : 1u << 31) + 100000);
    for (int step = 0; r == STRATA_OK && step < p->count; step++) {
        uint32_t *before = c.ends;
        size_t n = c.count, from = 0;
        c.ends = NULL;
        c.count = c.capacity = 0;
        for (size_t i = 0; r == STRATA_OK && i < n; i++) {
            r = cut_piece(&c, p->steps[step], text, from, before[i], err);
            from = before[i];
        }
        free(before);
    }
    pcre2_match_data_free(c.match);
    pcre2_match_context_free(c.context);
    if (r != STRATA_OK) {
        free(c.ends);
        return r;
    }
    cuts->ends = c.ends;
    cuts->count = c.count;
    return STRATA_OK;
}
