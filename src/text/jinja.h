/* An interpreter for the Jinja that published chat templates are written in, with the settings that Hugging Face's
 * transformers uses (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception,
 * strftime_now, generation blocks).
 *
 * Left out, and refused when the template is compiled: extends, block, include, import, autoescape, recursive loops.
 * Iterators (range, map, select, items, ...) are lists. Case mapping is Unicode's simple one.
 *
 * Templates come from downloaded files: memory, work, nesting and output are bounded, and every string knows which of
 * its bytes were written by the template and which came from the request. */
#ifndef ST_TEXT_JINJA_H
#define ST_TEXT_JINJA_H

#include <jansson.h>
#include <time.h>

#include "text/chat.h"

struct st_jinja;

/* Compiles. STRATA_E_FORMAT: breaks the language; STRATA_E_UNSUPPORTED: names what is not served; STRATA_E_LIMIT. All
 * name the line. The result is read-only and may be used from any thread. */
enum strata_result st_jinja_compile(const char *text, size_t size, struct st_jinja **out, struct strata_error *err);
void st_jinja_free(struct st_jinja *program);

struct st_jinja_limits {
    size_t memory;  /* bytes for all values of a rendering */
    uint64_t steps; /* nodes evaluated; handling 16 bytes of text counts as one more */
};
/* What every request gets: 512 MiB and 200 million steps. */
extern const struct st_jinja_limits st_jinja_default_limits;

/* A variable. Strings in json (keys too) count as the request's, template_text as the template's. */
struct st_jinja_variable {
    const char *name;
    const json_t *json;        /* or NULL: */
    const char *template_text; /* a string */
};

/* Renders into an empty *out. limits may be NULL. now: what strftime_now shows (local time). Errors name the line:
 * STRATA_E_ARGUMENT where the template refuses the variables or cannot work with them, STRATA_E_LIMIT. */
enum strata_result st_jinja_render(const struct st_jinja *program, const struct st_jinja_variable *variables,
                                   size_t count, const struct st_jinja_limits *limits, time_t now,
                                   struct st_rendered *out, struct strata_error *err);

#endif
