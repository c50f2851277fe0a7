/* strata serve: a model behind HTTP APIs and a page. */
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/serve_options.h"
#include "serve/backend_strata.h"

static enum strata_result make(void *user, struct st_backend **out, struct strata_error *err)
{
    const struct st_engine_args *a = user;
    if (!a->model)
        return st_fail(err, STRATA_E_ARGUMENT, "serve: which model? give -m FILE or STRATA_MODEL");
    struct strata_engine_options o;
    char cache[ST_CACHE_PATH];
    enum strata_result r = st_engine_options(a, cache, &o, err);
    return r ? r : st_backend_strata(a->model, &o, st_say_placement, out, err);
}

int st_cmd_serve(int argc, char **argv)
{
    struct st_engine_args a = ST_ENGINE_ARGS;
    const struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a),
        ST_SPEC_OPTIONS(a),
        ST_TEXT("session-dir", 0, &a.session_dir, "DIR",
                "folder for conversations that others take the place of, and for /slots; they outlive the server"),
        ST_SIZE("session-disk", 0, &a.session_disk, 1, 1e18, "SIZE", "bytes that such conversations may take there (default: 16G)"),
    };
    return st_serve_main(
        argc, argv, "-m FILE [options]",
        "Answers the OpenAI and Anthropic APIs and shows a page for the browser. Without other options it "
        "listens on this machine only, on port 8080.",
        options, ST_COUNT(options), make, &a);
}
