/* --grammar and --json-schema: what an answer must be. */
#ifndef ST_CLI_CONSTRAIN_H
#define ST_CLI_CONSTRAIN_H

#include "cli/common.h"

struct st_constrain_args {
    const char *grammar, *schema;
};

#define ST_CONSTRAIN_OPTIONS(a) \
    ST_TEXT("grammar", 0, &(a).grammar, "FILE", "the answer follows this grammar (GBNF)"), \
        ST_TEXT("json-schema", 0, &(a).schema, "FILE|TEXT", "the answer is JSON that this schema accepts; text begins with {")

/* Refuses both at once. */
int st_constrain_check(const struct st_constrain_args *a);
/* Makes the constraint that was asked for, or NULL; the caller frees it. prompt: as strata_constraint_options have it. */
int st_constrain(const struct st_constrain_args *a, const struct st_host *h, const char *prompt, struct strata_constraint **out);

#endif
