/* What a request reads again of a conversation that goes on, is edited, or is answered anew (the demo model, in its
 * chat form), and that answers do not depend on it. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint.h"
#include "engine/park.h"

enum { ANSWER = 6 };

static struct strata_model *model;
static struct strata_engine *engine;
static const struct strata_engine_options options = {
    .threads = 2, .context = 256, .sessions = 2, .session_ram = 64 << 20, .fp32 = true, .kv = STRATA_KV_F32};

static void model_path(char path[1024], const char *name)
{
    const char *source = getenv("STRATA_TEST_SOURCE");
    snprintf(path, 1024, "%s/models/%s", source ? source : ".", name);
}

#define SYSTEM "{\"role\": \"system\", \"content\": \"You answer questions about packages of Debian in one line.\"}"
#define USER(text) ", {\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) ", {\"role\": \"assistant\", \"content\": \"" text "\"}"

struct reply {
    int32_t token[ANSWER];
    size_t tokens;
    struct strata_stats stats;
};

static bool take(void *user, const struct strata_event *e)
{
    struct reply *r = user;
    if (e->kind == STRATA_EVENT_TEXT && e->token >= 0 && r->tokens < ANSWER)
        r->token[r->tokens++] = e->token;
    return true;
}

static struct reply ask(struct strata_session *s, const char *messages)
{
    struct strata_error err;
    struct reply reply = {.tokens = 0};
    int32_t *ids;
    size_t count;
    assert_ok(strata_chat_prompt(engine->model, messages, NULL, &ids, &count, NULL, &err), &err);
    struct strata_request q = {
        .ids = ids, .count = count, .max_tokens = ANSWER, .ignore_eos = true, .event = take, .user = &reply};
    strata_sampling_default(&q.sampling);
    assert_ok(strata_generate(s, &q, &reply.stats, &err), &err);
    assert_int_equal(reply.stats.prompt_tokens, count);
    assert_int_equal(reply.stats.reused_tokens + reply.stats.read_tokens, count);
    strata_free(ids);
    return reply;
}

static size_t tokens_of(const char *messages)
{
    struct strata_error err;
    int32_t *ids;
    size_t count;
    assert_ok(strata_chat_prompt(model, messages, "{\"add_generation_prompt\": false}", &ids, &count, NULL, &err),
              &err);
    while (count && !strata_is_stop_token(model, ids[count - 1]))
        count--; /* what a template writes between turns */
    strata_free(ids);
    return count;
}

/* In an engine that holds nothing, and in a session beside the one that was asked, which has what that one can lend. */
static void assert_same_as_cold(const char *messages, const struct reply *reply)
{
    struct strata_error err;
    struct strata_session *s;
    struct strata_engine *warm = engine, *cold;
    struct strata_engine_options o;
    strata_engine_options(warm, &o);
    assert_ok(strata_session_create(warm, &s, &err), &err);
    struct reply beside = ask(s, messages);
    assert_true(beside.stats.read_tokens < 12 || beside.stats.prompt_tokens < ST_PARK_LEAST + 12);
    assert_memory_equal(beside.token, reply->token, sizeof beside.token);
    strata_session_free(s);

    assert_ok(strata_engine_create(model, &o, &cold, &err), &err);
    assert_ok(strata_session_create(cold, &s, &err), &err);
    engine = cold;
    struct reply fresh = ask(s, messages);
    engine = warm;
    assert_int_equal(fresh.stats.reused_tokens, 0);
    assert_memory_equal(fresh.token, reply->token, sizeof fresh.token);
    strata_session_free(s);
    strata_engine_free(cold);
}

/* A conversation as people have them, in a new session of the engine; replies[6]. */
static void converse(struct reply *replies)
{
    struct strata_error err;
    struct strata_session *s;
    const char *first = "[" SYSTEM USER("What is gimp?") "]",
               *second = "[" SYSTEM USER("What is gimp?")
                   ASSISTANT("An image editor that many people use to draw, to retouch photographs and to turn files "
                             "of one kind into another.") USER("And what is vlc?") "]",
               *third = "[" SYSTEM USER("What is gimp?")
                   ASSISTANT("An image editor that many people use to draw, to retouch photographs and to turn files "
                             "of one kind into another.") USER("And what is nginx?") "]",
               *other = "[" SYSTEM USER("What is vlc?") "]",
               *fourth = "[" SYSTEM USER("What is gimp?")
                   ASSISTANT("An image editor that many people use to draw, to retouch photographs and to turn files "
                             "of one kind into another.") USER("And what is nginx?") ASSISTANT("A server.")
                       USER("Thanks.") "]";
    assert_ok(strata_session_create(engine, &s, &err), &err);
    replies[0] = ask(s, first);
    assert_int_equal(replies[0].stats.reused_tokens, 0);

    /* The same again, as for another answer: only what follows the last turn is read. */
    replies[1] = ask(s, first);
    assert_int_equal(replies[1].stats.reused_tokens, tokens_of(first));
    assert_true(replies[1].stats.read_tokens < 12);
    assert_memory_equal(replies[0].token, replies[1].token, sizeof replies[0].token);

    /* The conversation goes on with another answer than the one that was computed. */
    replies[2] = ask(s, second);
    assert_int_equal(replies[2].stats.reused_tokens, tokens_of(first));
    assert_same_as_cold(second, &replies[2]);

    /* Its last question is edited: the answer before it is not read again. */
    replies[3] = ask(s, third);
    assert_int_equal(replies[3].stats.reused_tokens,
                     tokens_of("[" SYSTEM USER("What is gimp?")
                                   ASSISTANT("An image editor that many people use to draw, to retouch photographs and "
                                             "to turn files of one kind into another.") "]"));
    assert_same_as_cold(third, &replies[3]);

    /* The first question is edited: the system's message is not read again. */
    replies[4] = ask(s, other);
    assert_int_equal(replies[4].stats.reused_tokens, tokens_of("[" SYSTEM "]"));
    assert_same_as_cold(other, &replies[4]);

    /* Back to the other conversation: its state was parked meanwhile. */
    replies[5] = ask(s, fourth);
    assert_true(replies[5].stats.reused_tokens >= tokens_of(first));
    assert_same_as_cold(fourth, &replies[5]);
    strata_session_free(s);
}

static void turns_are_read_once_and_edits_from_the_turn_before(void **state)
{
    (void)state;
    struct reply plain[6];
    converse(plain);
}

/* Guesses from the draft layer and from the text, across all of that. */
static void drafts_change_no_answer_of_a_conversation_that_goes_back(void **state)
{
    (void)state;
    struct strata_error err;
    struct reply plain[6], drafted[6];
    struct strata_engine *without = engine;
    size_t accepted = 0;
    converse(plain);
    struct strata_engine_options o = options;
    char path[1024];
    model_path(path, "demo-mtp.gguf");
    o.mtp_path = path;
    o.drafts = 3;
    assert_ok(strata_engine_create(model, &o, &engine, &err), &err);
    converse(drafted);
    for (int i = 0; i < 6; i++) {
        assert_memory_equal(drafted[i].token, plain[i].token, sizeof plain[i].token);
        accepted += drafted[i].stats.accepted_tokens;
    }
    assert_true(accepted > 0);
    strata_engine_free(engine);
    engine = without;
}

static void cuts_are_the_last_turns_the_first_one_and_every_16k_tokens(void **state)
{
    (void)state;
    enum { COUNT = 60000 };
    static int32_t ids[COUNT];
    uint32_t cuts[ST_CHECKPOINTS];
    int32_t stop = 0, plain = 0;
    while (!strata_is_stop_token(model, stop))
        stop++;
    while (strata_is_stop_token(model, plain))
        plain++;
    for (size_t i = 0; i < COUNT; i++)
        ids[i] = plain;
    /* No turns: every 16K, and before the last token. */
    assert_int_equal(st_checkpoint_cuts(engine, ids, 0, 40000, cuts), 3);
    assert_int_equal(cuts[0], 16384);
    assert_int_equal(cuts[1], 32768);
    assert_int_equal(cuts[2], 39999);
    assert_int_equal(st_checkpoint_cuts(engine, ids, 32768, 32769, cuts), 0);
    assert_int_equal(st_checkpoint_cuts(engine, ids, 32768, 32800, cuts), 0);
    /* Turns end at 100 and at the last 6 multiples of 50 before 10,000. */
    ids[99] = stop;
    for (size_t i = 0; i < 6; i++)
        ids[9999 - 50 * i] = stop;
    static const uint32_t want[] = {100, 9850, 9900, 9950, 10000};
    assert_int_equal(st_checkpoint_cuts(engine, ids, 0, 10010, cuts), 5);
    assert_memory_equal(cuts, want, sizeof want);
    /* A session that holds the first turns reads the rest. */
    assert_int_equal(st_checkpoint_cuts(engine, ids, 9900, 10010, cuts), 2);
    assert_memory_equal(cuts, want + 3, 2 * sizeof *want);
    /* Turns everywhere: as many as there is memory for, the first and the last among them. */
    for (size_t i = 0; i < COUNT; i += 20)
        ids[i] = stop;
    size_t n = st_checkpoint_cuts(engine, ids, 0, COUNT, cuts);
    assert_in_range(n, 6, ST_CHECKPOINTS);
    assert_int_equal(cuts[0], 1);
    assert_int_equal(cuts[n - 1], COUNT - 19);
    for (size_t i = 1; i < n; i++)
        assert_true(cuts[i] > cuts[i - 1]);
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err = {0};
    char path[1024];
    model_path(path, "demo.gguf");
    if (!strata_model_open(path, &model, &err) && !strata_engine_create(model, &options, &engine, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    strata_engine_free(engine);
    strata_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_are_read_once_and_edits_from_the_turn_before),
        cmocka_unit_test(drafts_change_no_answer_of_a_conversation_that_goes_back),
        cmocka_unit_test(cuts_are_the_last_turns_the_first_one_and_every_16k_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
