/* The page: its files from the program itself, with a policy that lets the browser load nothing else. */
#include "serve/page.h"

#include <string.h>

#include "serve/server.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                             "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
                             "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify";

bool st_answer_page(struct st_server *s, struct st_exchange *x)
{
    const char *path = strcmp(x->path, "/") == 0 ? "/index.html" : x->path;
    const struct st_page_file *file = NULL;
    for (size_t i = 0; i < st_page_file_count; i++)
        if (strcmp(st_page_files[i].path, path) == 0)
            file = &st_page_files[i];
    if (!file)
        return false;
    const char *known = st_exchange_header(x, "If-None-Match");
    bool same = known && strcmp(known, file->etag) == 0;
    st_metrics_request(&s->metrics, "page", same ? 304 : 200);
    st_exchange_add_header(x, "Content-Security-Policy", policy);
    st_exchange_add_header(x, "X-Content-Type-Options", "nosniff");
    st_exchange_add_header(x, "Referrer-Policy", "no-referrer");
    st_exchange_add_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    st_exchange_add_header(x, "Cache-Control", "no-cache");
    st_exchange_add_header(x, "ETag", file->etag);
    if (same)
        st_exchange_send(x, 304, NULL, NULL, 0);
    else
        st_exchange_send(x, 200, file->type, file->data, file->size);
    return true;
}
