/* The file of a model's draft layer, found beside the model's: named with "mtp", of the same architecture, with a draft
 * layer, and with the longest beginning of a name in common ("mtp-" and "-mtp" left out). */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { NAME_MAX_BYTES = 256 };

/* The name without its folder. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* How long the beginning is that the model's name and the candidate's share. 0: the candidate is not named for a draft
 * layer. */
static size_t likeness(const char *model, const char *candidate)
{
    char plain[NAME_MAX_BYTES];
    const char *mark = strstr(candidate, "mtp");
    size_t n = strlen(candidate), same = 0, end;
    if (!mark || n >= sizeof plain || n < 5 || strcmp(candidate + n - 5, ".gguf") != 0)
        return 0;
    size_t at = (size_t)(mark - candidate), skip = 3;
    if (at && candidate[at - 1] == '-') {
        at--;
        skip++;
    } else if (candidate[at + 3] == '-') {
        skip++;
    }
    snprintf(plain, sizeof plain, "%.*s%s", (int)at, candidate, candidate + at + skip);
    end = strlen(plain) - 5;
    while (same < end && plain[same] == model[same])
        same++;
    return same;
}

static bool has_draft_layer(const struct st_gguf *g, const char *architecture)
{
    char key[NAME_MAX_BYTES];
    uint32_t layers = 0;
    snprintf(key, sizeof key, "%s.nextn_predict_layers", architecture);
    return !st_gguf_u32_or(g, key, 0, &layers, NULL) && layers > 0;
}

/* Whether the file is a GGUF file of that architecture with a draft layer. */
static bool serves(const char *path, const char *architecture)
{
    struct st_gguf *g;
    const char *text;
    size_t size;
    if (st_gguf_open(path, &g, NULL))
        return false;
    bool good = !st_gguf_string(g, "general.architecture", &text, &size, NULL) && size == strlen(architecture) &&
                !memcmp(text, architecture, size) && has_draft_layer(g, architecture);
    st_gguf_close(g);
    return good;
}

enum strata_result st_find_draft_file(const struct strata_model *m, char **out, struct strata_error *err)
{
    const char *model = base_name(m->gguf->path);
    int folder = (int)(model - m->gguf->path);
    char *path = NULL, *best = NULL, where[4096];
    size_t most = 0;
    *out = NULL;
    if (has_draft_layer(m->gguf, m->architecture))
        return STRATA_OK;
    snprintf(where, sizeof where, "%.*s", folder ? folder : 1, folder ? m->gguf->path : ".");
    DIR *dir = opendir(where);
    for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        size_t like = likeness(model, d->d_name);
        if (!like || like < most || (like == most && best && strcmp(d->d_name, base_name(best)) > 0) ||
            strcmp(d->d_name, model) == 0)
            continue;
        if (asprintf(&path, "%.*s%s", folder, m->gguf->path, d->d_name) < 0)
            continue;
        if (!serves(path, m->architecture)) {
            free(path);
            continue;
        }
        free(best);
        best = path;
        most = like;
    }
    if (dir)
        closedir(dir);
    if (!best)
        return st_fail(err, STRATA_E_IO, "%s: no file with a draft layer (*mtp*.gguf, architecture %s) lies beside it",
                       m->gguf->path, m->architecture);
    *out = best;
    return STRATA_OK;
}
