/* --session FILE: the state of a session in FILE, and for chat the conversations themselves in FILE.json, so that nothing said is
 * lost with a state that no longer fits. */
#ifndef ST_CLI_TALKS_H
#define ST_CLI_TALKS_H

#include "cli/common.h"

#define ST_SESSION_OPTION(target) \
    ST_TEXT("session", 0, target, "FILE", \
            "goes on from the state in FILE if it fits, and leaves the state of the end there")

/* Restores h's session from the file, unless there is none. A damaged file costs a message and a cold read. So does one that
 * does not fit the model or its settings when all that it holds is elsewhere too (a copy); otherwise that is a failure, and
 * so is a device's. */
int st_state_load(const struct st_host *h, const char *path, bool copy);
/* Writes h's session into the file, unless it holds nothing. */
int st_state_save(const struct st_host *h, const char *path);

/* Conversations in the order in which they were begun; there is always a current one. */
struct st_talks {
    json_t *all;      /* array of arrays of messages */
    json_t *messages; /* the current one; borrowed */
    size_t current;
    char *path; /* "FILE.json", or NULL: they are kept in memory only */
};

/* session: FILE, or NULL. Reads FILE.json if there is one, otherwise begins with one empty conversation. */
int st_talks_open(struct st_talks *t, const char *session);
void st_talks_free(struct st_talks *t);
/* Writes FILE.json, if there is a file. */
int st_talks_save(const struct st_talks *t);
/* Begins another conversation, which is then the current one. */
int st_talks_begin(struct st_talks *t);
/* Makes a conversation the current one; false: there is none with that number (from 1). */
bool st_talks_go(struct st_talks *t, size_t number);
/* A line for each: number, what it begins with, how many messages. */
void st_talks_list(const struct st_talks *t);

#endif
