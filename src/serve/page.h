/* The page's files, built into the program. */
#ifndef ST_SERVE_PAGE_H
#define ST_SERVE_PAGE_H

#include <stddef.h>

struct st_page_file {
    const char *path; /* "/app.js" */
    const char *type;
    const char *etag; /* with its quotes */
    const unsigned char *data;
    size_t size;
};
/* Written by web/embed.py at build time. */
extern const struct st_page_file st_page_files[];
extern const size_t st_page_file_count;

#endif
