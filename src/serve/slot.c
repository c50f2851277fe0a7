/* POST /slots/N?action=save|restore|erase: a slot's state in a named file, as llama.cpp's server has it. */
#include <string.h>

#include "serve/server.h"

bool st_slot_read_action(struct st_call *call, const char *query, struct st_api_error *error)
{
    static const struct {
        const char *text;
        enum st_slot_action action;
    } actions[] = {{"action=save", ST_SLOT_SAVE}, {"action=restore", ST_SLOT_RESTORE}, {"action=erase", ST_SLOT_ERASE}};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (query && !strcmp(query, actions[i].text)) {
            call->slot_action = actions[i].action;
            return true;
        }
    return st_refuse(error, 400, NULL, "action", "action: expected ?action=save, restore or erase");
}

/* A plain name: it must not lead out of the folder, nor hide in it. */
static bool plain_name(const char *name)
{
    size_t n = strlen(name);
    return n && n < ST_SLOT_FILE && name[0] != '.' && !strstr(name, ".strata-part.") &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

bool st_slot_read(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const char *name = NULL;
    if (!st_body_string(body, "", "filename", &name, error))
        return false;
    if (!name || !plain_name(name))
        return st_refuse(error, 400, NULL, "filename",
                         "filename: expected a name of letters, digits, '.', '_' and '-', at most %d, not beginning with '.'",
                         ST_SLOT_FILE - 1);
    strcpy(call->slot_file, name);
    return true;
}

void st_job_slot(struct st_job *job, struct st_backend *b)
{
    struct strata_error err = {0};
    double start = st_now();
    const struct st_call *c = &job->call;
    struct st_slot_result *out = &job->slot_result;
    enum strata_result r = b->ops->slot(b, c->slot, c->slot_action, c->slot_file, out, &err);
    job->slot_seconds = st_now() - start;
    if (r != STRATA_OK) {
        bool client = out->missing || r == STRATA_E_FORMAT || r == STRATA_E_ARGUMENT || r == STRATA_E_MODEL || r == STRATA_E_UNSUPPORTED || r == STRATA_E_LIMIT;
        job->failed = true;
        st_refuse(&job->error, out->busy ? 409 : out->missing ? 404 : client ? 400 : 500, NULL, client && !out->busy ? "filename" : NULL, "%s", err.text);
    }
    st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
}

json_t *st_slot_json(const struct st_job *job)
{
    json_int_t tokens = (json_int_t)job->slot_result.tokens, bytes = (json_int_t)job->slot_result.bytes;
    double ms = 1e3 * job->slot_seconds;
    switch (job->call.slot_action) {
    case ST_SLOT_SAVE:
        return json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", (int)job->call.slot, "filename", job->call.slot_file, "n_saved", tokens,
                         "n_written", bytes, "timings", "save_ms", ms);
    case ST_SLOT_RESTORE:
        return json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", (int)job->call.slot, "filename", job->call.slot_file, "n_restored",
                         tokens, "n_read", bytes, "timings", "restore_ms", ms);
    case ST_SLOT_ERASE: return json_pack("{s:i, s:I}", "id_slot", (int)job->call.slot, "n_erased", tokens);
    }
    return NULL;
}
