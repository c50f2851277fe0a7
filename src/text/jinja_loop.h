/* Template interpreter: the variable "loop". */
#ifndef ST_TEXT_JINJA_LOOP_H
#define ST_TEXT_JINJA_LOOP_H

#include "text/jinja_value.h"

struct st_jvalue st_j_loop_attribute(struct st_j *j, struct st_jvalue loop, const char *name, size_t size);
struct st_jvalue st_j_call_loop(struct st_j *j, const struct st_jmethod *m, const struct st_jargs *args);

#endif
