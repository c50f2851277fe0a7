/* strata serve: a model behind HTTP APIs and a page; and the process that it starts for the engine. */
#define _GNU_SOURCE
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/serve_options.h"
#include "serve/backend_child.h"
#include "serve/backend_strata.h"
#include "serve/child.h"

/* An engine waits for a device for at most two minutes; a process that is silent for longer stands still. */
enum { WATCHDOG_SECONDS = 150, SAVE_SECONDS = 60, ARGUMENTS_MAX = 4096 };

struct serve_args {
    struct st_engine_args engine;
    int argc;
    char **argv;
    bool process; /* this is the engine's process */
    int64_t watchdog, save;
};

/* ---- a folder for the conversations of this run ---- */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    remove(path);
    return 0;
}

/* Where no folder was given: one of our own, whose name the engine's process finds in its environment. */
static enum strata_result make_folder(const struct st_engine_args *a, char **out, struct strata_error *err)
{
    const char *parent = getenv("TMPDIR");
    *out = NULL;
    if (a->session_dir)
        return STRATA_OK;
    if (asprintf(out, "%s/strata-serve-XXXXXX", parent && *parent ? parent : "/var/tmp") < 0) {
        *out = NULL;
        return st_fail(err, STRATA_E_MEMORY, "serve: out of memory");
    }
    if (!mkdtemp(*out)) {
        enum strata_result r = st_fail(err, STRATA_E_IO, "%s: cannot make a folder for conversations; give one with --session-dir", *out);
        free(*out);
        *out = NULL;
        return r;
    }
    setenv("STRATA_SESSION_DIR", *out, 1);
    if (!a->session_disk)
        setenv("STRATA_SESSION_DISK", "4G", 1);
    return STRATA_OK;
}

static void remove_folder(char *folder)
{
    if (folder)
        nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

/* ---- the two processes ---- */

static void end_at_once(void)
{
    _exit(ST_EXIT_DEVICE);
}

static enum strata_result run_engine(const struct serve_args *a, const struct strata_engine_options *o, struct strata_error *err)
{
    const struct st_child_options options = {.save_seconds = (double)a->save, .orphaned = end_at_once};
    struct st_backend *backend;
    enum strata_result r = st_backend_strata(a->engine.model, o, st_say_placement, &backend, err);
    return r ? r : st_child_run(backend, &options, err);
}

static enum strata_result run_server(const struct serve_args *a, const struct strata_engine_options *o,
                                     const struct st_serve_options *serve, struct strata_error *err)
{
    char *argv[ARGUMENTS_MAX] = {"strata", ST_ENGINE_PROCESS}, *folder;
    if (a->argc + 2 > ARGUMENTS_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "serve: too many arguments");
    for (int i = 1; i < a->argc; i++)
        argv[i + 1] = a->argv[i];
    const struct st_backend_child_options options = {.program = "/proc/self/exe",
                                                     .argv = argv,
                                                     .reserve = "--vram-reserve",
                                                     .silent_seconds = (double)a->watchdog,
                                                     .log = serve->log,
                                                     .log_user = serve->log_user};
    struct st_backend *local, *backend;
    enum strata_result r = make_folder(&a->engine, &folder, err);
    if (!r)
        r = st_backend_strata(a->engine.model, o, NULL, &local, err);
    if (!r)
        r = st_backend_child(local, &options, &backend, err);
    if (!r)
        r = st_serve(backend, serve, err);
    remove_folder(folder);
    return r;
}

static enum strata_result run(void *user, const struct st_serve_options *serve, struct strata_error *err)
{
    const struct serve_args *a = user;
    struct strata_engine_options o;
    char cache[ST_CACHE_PATH];
    if (!a->engine.model)
        return st_fail(err, STRATA_E_ARGUMENT, "serve: which model? give -m FILE or STRATA_MODEL");
    enum strata_result r = st_engine_options(&a->engine, cache, &o, err);
    if (r)
        return r;
    return a->process ? run_engine(a, &o, err) : run_server(a, &o, serve, err);
}

static int serve(struct serve_args *a)
{
    const struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a->engine),
        ST_SPEC_OPTIONS(a->engine),
        ST_TEXT("session-dir", 0, &a->engine.session_dir, "DIR",
                "folder for conversations that others take the place of, and for /slots; they outlive the server"),
        ST_SIZE("session-disk", 0, &a->engine.session_disk, 1, 1e18, "SIZE",
                "bytes that such conversations may take there (default: 16G; 4G without a folder)"),
        ST_INT("parallel", 0, &a->engine.sessions, 0, 256, "N",
               "answers that are computed at once, each with a context of its own (default: 4, fewer where memory is short)"),
        ST_INT("save-every", 0, &a->save, 0, 86400, "SECONDS",
               "between saves of a conversation that goes on, so that it outlives a failing engine (default 60; 0: after each answer)"),
        ST_INT("watchdog", 0, &a->watchdog, 1, 86400, "SECONDS",
               "without a sign of life after which the engine is ended and started again (default 150)"),
    };
    return st_serve_main(
        a->argc, a->argv, "-m FILE [options]",
        "Answers the OpenAI and Anthropic APIs and shows a page for the browser. Without other options it "
        "listens on this machine only, on port 8080.",
        options, ST_COUNT(options), run, a);
}

#define SERVE_ARGS(process_, argc_, argv_) \
    {.engine = ST_ENGINE_ARGS, .argc = argc_, .argv = argv_, .process = process_, .watchdog = WATCHDOG_SECONDS, .save = SAVE_SECONDS}

int st_cmd_serve(int argc, char **argv)
{
    struct serve_args a = SERVE_ARGS(false, argc, argv);
    return serve(&a);
}

int st_cmd_engine_process(int argc, char **argv)
{
    struct serve_args a = SERVE_ARGS(true, argc, argv);
    static const int left_to_the_server[] = {SIGINT, SIGTERM, SIGHUP};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < ST_COUNT(left_to_the_server); i++)
        signal(left_to_the_server[i], SIG_IGN);
    return serve(&a);
}
