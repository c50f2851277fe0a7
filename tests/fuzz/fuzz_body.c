/* The body of a request from anywhere: the first byte picks the call, the rest is read as its body. What is accepted is
 * then written out as the templates get it; what is refused names a fault of the client. */
#include <stdlib.h>
#include <string.h>

#include "serve/call.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(const struct st_api_error *error)
{
    /* Memory is the one other reason: 503. */
    if ((error->status != 400 && error->status != 503) || !*error->message ||
        strlen(error->param) >= sizeof error->param)
        abort();
}

static void check_call(struct st_call *call)
{
    char *messages = json_dumps(call->messages, JSON_COMPACT), *options = json_dumps(call->options, JSON_COMPACT);
    if (!messages || !options)
        abort();
    free(messages);
    free(options);
    size_t i;
    json_t *message;
    json_array_foreach(call->messages, i, message) if (!json_is_string(json_object_get(message, "role")) ||
                                                       !json_is_string(json_object_get(message, "content"))) abort();
    if (call->demands_tools && !json_array_size(json_object_get(call->options, "tools")))
        abort();
    if (call->max_tokens < 0 || call->sampling.logprobs > 20 || call->sampling.top_p <= 0)
        abort();
    st_call_move_system(call);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strata_sampling defaults;
    struct st_api_error error = {0};
    struct st_call call;
    if (size == 0)
        return 0;
    strata_sampling_default(&defaults);
    unsigned kind = data[0] % (ST_CALL_SLOT + 2); /* those behind it have no body to speak of, but for the last */
    st_call_init(&call, kind > ST_CALL_SLOT ? ST_CALL_RESPONSES : (enum st_call_kind)kind, &defaults);
    if (st_call_read(&call, (const char *)data + 1, size - 1, &error))
        check_call(&call);
    else
        check_refusal(&error);
    st_call_free(&call);
    return 0;
}
