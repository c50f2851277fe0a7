/* Bytes that a token reads: counted by hand for one command of each kind that reads much. */
#include "test.h"

#include "engine/stage.h"

static const uint8_t there; /* weights that are present; nothing is read */

static struct st_weight matrix(uint32_t rows, size_t row_bytes)
{
    return (struct st_weight){.data = &there, .rows = rows, .row_bytes = row_bytes, .expert_bytes = rows * row_bytes};
}

static double traffic_of(const struct st_command *c, uint32_t depth)
{
    struct st_command copy = *c;
    struct st_program p = {.commands = &copy, .n_commands = 1};
    return st_program_traffic(&p, depth);
}

static void products_read_every_row_once(void **state)
{
    (void)state;
    struct st_weight a = matrix(10, 34), b = matrix(3, 100);
    struct st_command c = {.op = ST_OP_products};
    c.u.products.product[0].w = &a;
    c.u.products.product[1].w = &b;
    c.u.products.count = 2;
    assert_true(traffic_of(&c, 0) == 10 * 34 + 3 * 100);
}

static void experts_read_the_used_ones_and_the_shared_one(void **state)
{
    (void)state;
    struct st_weight gate = matrix(8, 10), up = matrix(8, 20), down = matrix(4, 30), shared = matrix(2, 7), none = {0};
    struct st_command c = {.op = ST_OP_experts};
    c.u.experts.gate = &gate;
    c.u.experts.up = &up;
    c.u.experts.down = &down;
    c.u.experts.shared_gate = &shared;
    c.u.experts.shared_up = &shared;
    c.u.experts.shared_down = &none;
    c.u.experts.experts = 64;
    c.u.experts.used = 3;
    assert_true(traffic_of(&c, 0) == 3 * (80 + 160 + 120) + 2 * 14);
}

static void a_recurrent_state_is_read_and_written(void **state)
{
    (void)state;
    struct st_command c = {.op = ST_OP_gdn};
    c.u.gdn.value_heads = 2;
    c.u.gdn.key_dim = 8;
    c.u.gdn.value_dim = 16;
    c.u.gdn.taps = 4;
    c.u.gdn.channels = 5;
    assert_true(traffic_of(&c, 4096) == 2 * 4 * (2 * 8 * 16 + 3 * 5));
}

static void attention_reads_keys_and_values_up_to_what_its_index_lets_through(void **state)
{
    (void)state;
    struct st_command c = {.op = ST_OP_qsa};
    struct st_qsa *q = &c.u.qsa;
    q->kv_heads = 2;
    q->kv_bytes = 64;
    q->context = 1000;
    assert_true(traffic_of(&c, 300) == 2.0 * 2 * 64 * 300);
    assert_true(traffic_of(&c, 4096) == 2.0 * 2 * 64 * 1000);
    q->ratio = 4;
    q->budget = 96;
    q->index_dim = 8;
    assert_true(traffic_of(&c, 50) == 2.0 * 2 * 64 * 50 + 12 * 8 * 4);
    assert_true(traffic_of(&c, 400) == 2.0 * 2 * 64 * 100 + 100 * 8 * 4);
}

static void only_state_that_grows_with_the_context_counts_as_keys_and_values(void **state)
{
    (void)state;
    struct st_state_piece pieces[2] = {{.slot_stride = 1000, .outer = 1},
                                       {.slot_stride = 100, .outer = 2, .tokens_per_unit = 4}};
    struct st_program p = {.pieces = pieces, .n_pieces = 2};
    assert_int_equal(st_program_kv_bytes(&p, 1), 128); /* in steps of 64, as they are placed */
    assert_int_equal(st_program_kv_bytes(&p, 3), 320);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_read_every_row_once),
        cmocka_unit_test(experts_read_the_used_ones_and_the_shared_one),
        cmocka_unit_test(a_recurrent_state_is_read_and_written),
        cmocka_unit_test(attention_reads_keys_and_values_up_to_what_its_index_lets_through),
        cmocka_unit_test(only_state_that_grows_with_the_context_counts_as_keys_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
