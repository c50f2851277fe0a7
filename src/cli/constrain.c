/* See constrain.h. */
#include "cli/constrain.h"

#include <stdlib.h>
#include <string.h>

int st_constrain_check(const struct st_constrain_args *a)
{
    return a->grammar && a->schema ? st_user_error("run: give --grammar or --json-schema, not both") : ST_EXIT_OK;
}

int st_constrain(const struct st_constrain_args *a, const struct st_host *h, const char *prompt, struct strata_constraint **out)
{
    const char *source = a->grammar ? a->grammar : a->schema;
    bool text_given = !a->grammar && source && *source == '{';
    char *text = NULL;
    size_t size;
    *out = NULL;
    if (!source)
        return ST_EXIT_OK;
    int status = text_given ? ST_EXIT_OK : st_read_input(source, &text, &size);
    if (status)
        return status;
    const char *content = text_given ? source : text;
    struct strata_constraint_options o = {.grammar = a->grammar ? content : NULL,
                                          .json_schema = a->grammar ? NULL : content,
                                          .prompt = prompt};
    struct strata_error err;
    enum strata_result r = strata_constraint_create(h->model, &o, out, &err);
    if (r == STRATA_E_MEMORY)
        status = st_report(&err);
    else if (r) /* what the caller wrote is wrong, not the model's file */
        status = st_user_error("%s: %s", a->grammar ? "--grammar" : "--json-schema", err.text);
    free(text);
    return status;
}
