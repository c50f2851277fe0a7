/* States and conversations in files: see talks.h. */
#include "cli/talks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { VERSION = 1, SHOWN = 60 };

int st_state_load(const struct st_host *h, const char *path, bool copy)
{
    struct strata_error err;
    struct st_out out;
    if (st_out_open(path, &out, &err)) /* before an answer is computed that could not be kept */
        return st_report(&err);
    st_out_abort(&out);
    if (access(path, F_OK))
        return ST_EXIT_OK;
    enum strata_result r = strata_session_restore(h->session, path, &err);
    if (!r)
        return ST_EXIT_OK;
    bool fits_not = r == STRATA_E_MODEL || r == STRATA_E_LIMIT || r == STRATA_E_UNSUPPORTED;
    if (fits_not && !copy)
        return st_user_error("%s; the file stays as it is: give the same settings, or remove it to begin anew", err.text);
    int status = st_report(&err);
    if (!fits_not && r != STRATA_E_FORMAT) /* among them somebody else's file, which stays */
        return status;
    fputs("strata: everything is read anew\n", stderr);
    return ST_EXIT_OK;
}

int st_state_save(const struct st_host *h, const char *path)
{
    struct strata_error err;
    if (!strata_session_tokens(h->session, NULL))
        return ST_EXIT_OK;
    return strata_session_save(h->session, path, &err) ? st_report(&err) : ST_EXIT_OK;
}

static bool is_message(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role && (!strcmp(role, "system") || !strcmp(role, "user") || !strcmp(role, "assistant")) &&
           json_is_string(json_object_get(m, "content"));
}

/* The parts of FILE.json; false: it is something else. */
static bool take_file(struct st_talks *t, const json_t *root)
{
    json_t *all = json_object_get(root, "conversations"), *current = json_object_get(root, "current");
    if (json_integer_value(json_object_get(root, "version")) != VERSION || !json_array_size(all) || !json_is_integer(current) ||
        json_integer_value(current) < 0 || (size_t)json_integer_value(current) >= json_array_size(all))
        return false;
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *talk = json_array_get(all, i);
        if (!json_is_array(talk))
            return false;
        for (size_t k = 0; k < json_array_size(talk); k++)
            if (!is_message(json_array_get(talk, k)))
                return false;
    }
    t->all = json_incref(all);
    return st_talks_go(t, (size_t)json_integer_value(current) + 1);
}

static int read_file(struct st_talks *t)
{
    struct strata_error err;
    char *text;
    size_t size;
    if (st_read_file(t->path, ST_INPUT_LIMIT, &text, &size, &err))
        return st_report(&err);
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    bool good = root && take_file(t, root);
    json_decref(root);
    free(text);
    return good ? ST_EXIT_OK : st_user_error("%s: not a file of conversations", t->path);
}

int st_talks_open(struct st_talks *t, const char *session)
{
    *t = (struct st_talks){.all = NULL};
    if (session) {
        size_t room = strlen(session) + 6;
        t->path = malloc(room);
        if (!t->path)
            return st_user_error("chat: no memory");
        snprintf(t->path, room, "%s.json", session);
        if (!access(t->path, F_OK))
            return read_file(t);
    }
    t->all = json_array();
    return st_talks_begin(t);
}

void st_talks_free(struct st_talks *t)
{
    json_decref(t->all);
    free(t->path);
    *t = (struct st_talks){.all = NULL};
}

int st_talks_save(const struct st_talks *t)
{
    struct strata_error err;
    struct st_out out;
    if (!t->path)
        return ST_EXIT_OK;
    json_t *root = json_pack("{s:i, s:I, s:O}", "version", VERSION, "current", (json_int_t)t->current, "conversations", t->all);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return st_user_error("%s: no memory", t->path);
    st_out_sweep(t->path);
    enum strata_result r = st_out_open(t->path, &out, &err);
    out.mode = 0600;
    if (!r)
        r = st_out_write(&out, text, strlen(text), &err);
    if (!r)
        r = st_out_write(&out, "\n", 1, &err);
    if (!r)
        r = st_out_commit(&out, &err);
    else
        st_out_abort(&out);
    free(text);
    return r ? st_report(&err) : ST_EXIT_OK;
}

int st_talks_begin(struct st_talks *t)
{
    if (json_array_append_new(t->all, json_array()))
        return st_user_error("chat: no memory");
    return st_talks_go(t, json_array_size(t->all)) ? ST_EXIT_OK : st_user_error("chat: no memory");
}

bool st_talks_go(struct st_talks *t, size_t number)
{
    if (!number || number > json_array_size(t->all))
        return false;
    t->current = number - 1;
    t->messages = json_array_get(t->all, t->current);
    return true;
}

void st_talks_list(const struct st_talks *t)
{
    for (size_t i = 0; i < json_array_size(t->all); i++) {
        const json_t *talk = json_array_get(t->all, i);
        const char *first = "", *role;
        for (size_t k = 0; k < json_array_size(talk) && !*first; k++) {
            role = json_string_value(json_object_get(json_array_get(talk, k), "role"));
            if (!strcmp(role, "user"))
                first = json_string_value(json_object_get(json_array_get(talk, k), "content"));
        }
        char shown[SHOWN + 8], line[SHOWN + 80];
        st_printable(shown, sizeof shown, first, strlen(first));
        int n = snprintf(line, sizeof line, "%c%zu  %s  (%zu messages)\n", i == t->current ? '*' : ' ', i + 1, shown,
                         json_array_size(talk));
        st_print(line, (size_t)n);
    }
}
