/* Options of a server: addresses, keys, limits, sampling defaults. */
#include "cli/serve_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { EXTRA_MAX = 40, KEY_LINES_MAX = 1000 };

static void print_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

/* Adds the lines of a file that are neither empty nor begin with '#'. text stays the keys' memory. */
static int read_keys(const char *path, char **text, struct st_list *keys)
{
    struct strata_error err;
    size_t size;
    if (st_read_file(path, 64 << 10, text, &size, &err) != STRATA_OK)
        return st_report(&err);
    size_t before = keys->count;
    for (char *rest = *text, *line; (line = strsep(&rest, "\r\n"));) {
        if (!*line || *line == '#')
            continue;
        const char **items = realloc(keys->items, (keys->count + 1) * sizeof *items);
        if (!items || keys->count >= KEY_LINES_MAX)
            return st_user_error("%s: too many keys", path);
        keys->items = items;
        keys->items[keys->count++] = line;
    }
    return keys->count > before ? ST_EXIT_OK : st_user_error("%s: there is no key in it", path);
}

int st_serve_main(int argc, char **argv, const char *form, const char *summary, const struct st_opt *extra,
                  size_t extra_count, st_serve_run *run, void *user)
{
    struct st_serve_options o;
    st_serve_default(&o);
    struct st_list keys = {0}, origins = {0}, names = {0};
    const char *key_file = NULL;
    char *key_text = NULL;
    int64_t port = o.port, queue = (int64_t)o.queue, connections = o.max_connections,
            request_seconds = o.request_seconds;
    int64_t answer_seconds = o.answer_seconds, idle_seconds = o.idle_seconds, top_k = -1;
    uint64_t max_body = o.max_body, max_pending = o.max_pending;
    /* Below the bounds: not given. */
    double keepalive = 1e-3 * o.keepalive_ms, temperature = -1, top_p = -1, min_p = -1, repeat = -1;
    bool quiet = false;
    int status;
    const struct st_opt own[] = {
        ST_TEXT("host", 0, &o.host, "ADDRESS", "address to listen on (default 127.0.0.1: this machine only)"),
        ST_INT("port", 0, &port, 0, 65535, "N", "port (default 8080; 0: any free one)"),
        ST_LIST("api-key", 0, &keys, "KEY", "key that clients must send; may be given many times"),
        ST_TEXT("api-key-file", 0, &key_file, "FILE", "file with one key per line"),
        ST_TEXT("tls-cert", 0, &o.tls_cert, "FILE", "certificate (PEM, issuers behind it): https instead of http; read again at SIGHUP"),
        ST_TEXT("tls-key", 0, &o.tls_key, "FILE", "its key (PEM, not encrypted)"),
        ST_LIST("cors", 0, &origins, "ORIGIN",
                "web pages that may call besides the server's own, as https://host:port, or * for all; may be given "
                "many times"),
        ST_LIST("host-name", 0, &names, "NAME", "name of this machine that clients may use; may be given many times"),
        ST_TEXT("alias", 0, &o.alias, "NAME", "name of the model that clients see"),
        ST_INT("queue", 0, &queue, 0, 10000, "N", "requests that may wait while one is computed (default 32)"),
        ST_INT("max-connections", 0, &connections, 1, 10000, "N", "open connections (default 256)"),
        ST_SIZE("max-body", 0, &max_body, 1024, 1ull << 30, "SIZE", "largest body of a request (default 16M)"),
        ST_SIZE("max-unread", 0, &max_pending, 4096, 1ull << 30, "SIZE",
                "text that may wait for a client that does not read its stream (default 1M)"),
        ST_INT("request-timeout", 0, &request_seconds, 1, 3600, "SECONDS", "time for a request to arrive (default 60)"),
        ST_INT("answer-timeout", 0, &answer_seconds, 0, 86400, "SECONDS",
               "time to compute one answer, which then ends as if it had reached its length (default: any)"),
        ST_NUMBER("keepalive", 0, &keepalive, 0.05, 3600, "SECONDS",
                  "between signs of life in a stream while a prompt is read (default 10)"),
        ST_FLAG("load-on-demand", 0, &o.load_on_demand, "load the model when the first request comes"),
        ST_FLAG("vram-elastic", 0, &o.vram_elastic, "let POST /v1/vram say how much memory of devices stays free"),
        ST_INT("idle-unload", 0, &idle_seconds, 0, 1 << 30, "SECONDS",
               "without a request after which the model is unloaded, until the next one (default: never)"),
        ST_NUMBER("temp", 0, &temperature, 0, 100, "X",
                  "temperature where a request has none (default: the model's, or 0.7)"),
        ST_INT("top-k", 0, &top_k, 0, 1 << 30, "N", "likewise top-k (default: the model's, or 40; 0: off)"),
        ST_NUMBER("top-p", 0, &top_p, 1e-6, 1, "X", "likewise top-p (default: the model's, or 0.95; 1: off)"),
        ST_NUMBER("min-p", 0, &min_p, 0, 1, "X", "likewise min-p (default: the model's, or 0: off)"),
        ST_NUMBER("repeat-penalty", 0, &repeat, 0.01, 100, "X",
                  "likewise repetition penalty (default: the model's, or 1: off)"),
        ST_FLAG("log-prompts", 0, &o.log_prompts, "write what clients ask to the log"),
        ST_FLAG("quiet", 'q', &quiet, "no line per request"),
    };
    struct st_opt options[ST_COUNT(own) + EXTRA_MAX];
    if (extra_count > EXTRA_MAX)
        return st_user_error("too many options");
    if (extra_count)
        memcpy(options, extra, extra_count * sizeof *extra);
    memcpy(options + extra_count, own, sizeof own);
    const struct st_usage usage = {"serve", form, summary, options, ST_COUNT(own) + extra_count, NULL, 0, 0, NULL};
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    status = key_file ? read_keys(key_file, &key_text, &keys) : ST_EXIT_OK;
    for (size_t i = 0; !status && i < keys.count; i++)
        if (!*keys.items[i])
            status = st_user_error("--api-key: a key is empty");
    if (!status && !o.tls_cert != !o.tls_key)
        status = st_user_error("--tls-cert and --tls-key belong together");
    if (!status) {
        o.port = (int)port;
        o.keys = keys.items;
        o.key_count = keys.count;
        o.origins = origins.items;
        o.origin_count = origins.count;
        o.names = names.items;
        o.name_count = names.count;
        o.queue = (size_t)queue;
        o.max_connections = (int)connections;
        o.max_body = max_body;
        o.max_pending = max_pending;
        o.request_seconds = (int)request_seconds;
        o.answer_seconds = (int)answer_seconds;
        o.idle_seconds = (int)idle_seconds;
        o.keepalive_ms = (int)(1000 * keepalive);
        o.sampling.temperature = (float)temperature;
        o.sampling.top_k = (int)top_k;
        o.sampling.top_p = (float)top_p;
        o.sampling.min_p = (float)min_p;
        o.sampling.repetition_penalty = (float)repeat;
        o.log_requests = !quiet;
        o.log = print_line;
        struct strata_error err;
        if (run(user, &o, &err) != STRATA_OK)
            status = st_report(&err);
    }
    free(key_text);
    st_list_free(&keys);
    st_list_free(&origins);
    st_list_free(&names);
    return status;
}
