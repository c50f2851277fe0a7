/* Machines of simulated devices for tests of the engine: the miniature model, requests on it, and runtimes whose
 * devices change from one opening to the next. */
#ifndef ST_TESTS_MACHINE_H
#define ST_TESTS_MACHINE_H

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { TINY_VOCABULARY = 600, TINY_LAYERS = 5 };

/* Under the thread sanitizer a work-item costs a hundred times as much, and prompts are shorter. */
#if defined(__SANITIZE_THREAD__)
#define SMALL 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SMALL 1
#endif
#endif
#ifndef SMALL
#define SMALL 0
#endif

extern const struct st_runtime st_runtime_sim;

/* Opens "<build>/tests/topology/tiny.gguf"; 0, or -1 after saying why. */
static inline int open_tiny(struct strata_model **out)
{
    const char *build = getenv("STRATA_TEST_BUILD");
    struct strata_error err = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/topology/tiny.gguf", build ? build : ".");
    if (!strata_model_open(path, out, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

/* Ids that no two neighbouring positions share. */
static inline void make_ids(int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i * 37 + 11) % TINY_VOCABULARY);
}

static __attribute__((noinline, unused)) void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* ---- simulated devices that change: the list of each opening of the runtime, the last one for all that follow ---- */

static const char *sim_openings[4]; /* NULL: the runtime cannot be opened; "": as the engine asks */
static int sim_opening_count, sim_opened;

static inline enum strata_result open_changing_sim(const struct st_runtime_options *o, struct st_rt **out,
                                                   struct strata_error *err)
{
    int i = sim_opened < sim_opening_count ? sim_opened : sim_opening_count - 1;
    struct st_runtime_options own = *o;
    sim_opened++;
    if (!sim_openings[i])
        return st_fail(err, STRATA_E_UNSUPPORTED, "the driver does not answer");
    own.devices = sim_openings[i][0] ? sim_openings[i] : o->devices;
    return st_runtime_sim.open(&own, out, err);
}

/* A table of one runtime, opened with the given lists one after the other. */
static inline const struct st_runtime *const *changing_sim(const char *first, const char *then)
{
    static struct st_runtime sim;
    static const struct st_runtime *const tables[] = {&sim, NULL};
    sim = st_runtime_sim;
    sim.open = open_changing_sim;
    sim_openings[0] = first;
    sim_openings[1] = then;
    sim_opening_count = 2;
    sim_opened = 0;
    return tables;
}

#endif
