/* Which experts have slots, which of those prompts may borrow, and what comes to them afterwards. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "engine/expert_store.h"

enum { LAYERS = 3, EXPERTS = 8, SLOT = 512, LARGE = 768 };

/* Two layers with small experts, one with large ones. */
static void make_store(struct st_expert_store *s, struct st_expert_profile *p)
{
    struct strata_error err;
    *s = (struct st_expert_store){.set = {.count = LAYERS, .experts = EXPERTS, .trunk_rows = LAYERS}};
    s->set.layer = calloc(LAYERS, sizeof *s->set.layer);
    for (uint32_t l = 0; l < LAYERS; l++) {
        s->set.layer[l].row = l;
        s->set.layer[l].slot = l == 1 ? LARGE : SLOT;
    }
    assert_ok(st_expert_profile_create(LAYERS, EXPERTS, p, &err), &err);
    for (uint64_t i = 0; i < LAYERS * EXPERTS; i++)
        p->count[i] = 1000 - 10 * i; /* in the order of their numbers */
}

static void make_filled(struct st_expert_store *s, struct st_expert_profile *p, uint64_t budget, uint64_t lent)
{
    struct strata_error err;
    make_store(s, p);
    assert_ok(st_expert_store_fill(s, p, NULL, budget, lent, &err), &err);
}

static void free_both(struct st_expert_store *s, struct st_expert_profile *p)
{
    st_expert_store_free(s);
    st_expert_profile_free(p);
}

static void prompts_may_borrow_the_slots_of_the_least_wanted(void **state)
{
    (void)state;
    struct st_expert_store s;
    struct st_expert_profile p;
    uint8_t marks[LAYERS * EXPERTS];
    const uint64_t budget = EXPERTS * SLOT + 4 * LARGE, lent = 2 * LARGE - 1; /* two and nearly two more */
    make_filled(&s, &p, budget, lent);
    assert_int_equal(st_expert_choose(&s.set, &p, budget, lent, marks), budget);
    assert_int_equal(s.bytes, budget);
    assert_int_equal(s.slots, 12);
    assert_int_equal(s.kept, 10);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        uint8_t want = i < 10 ? ST_EXPERT_KEPT : i < 12 ? ST_EXPERT_LENT : ST_EXPERT_OUT;
        assert_int_equal(marks[i], want);
        assert_int_equal(st_expert_store_mark(&s, i / EXPERTS, i % EXPERTS), want);
    }
    /* More than there is: then all of them. */
    assert_int_equal(st_expert_choose(&s.set, &p, budget, budget + 1, marks), budget);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(marks[i], ST_EXPERT_LENT);
    assert_int_equal(st_expert_choose(&s.set, &p, budget, 0, marks), budget);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(marks[i], ST_EXPERT_KEPT);
    free_both(&s, &p);
}

static void host_memory_serves_experts_without_a_slot_before_those_in_lent_ones(void **state)
{
    (void)state;
    struct st_expert_store s;
    struct st_expert_profile p;
    uint8_t marks[LAYERS * EXPERTS], chosen[LAYERS * EXPERTS];
    make_store(&s, &p);
    st_expert_choose(&s.set, &p, 8 * SLOT, 2 * SLOT, marks);
    st_expert_rank(&s.set, &p, marks, 8 * LARGE + 8 * SLOT + SLOT, chosen);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
        assert_int_equal(chosen[i], i == 6 || i >= 8); /* 6 and 7 are in slots that may be lent */
    free_both(&s, &p);
}

static void a_prompt_takes_what_it_needs_and_kept_slots_stay(void **state)
{
    (void)state;
    struct st_expert_store s;
    struct st_expert_profile p;
    make_filled(&s, &p, 8 * SLOT, 4 * SLOT);
    assert_int_equal(s.kept, 4);
    st_expert_store_lend(&s, 6 * SLOT + 1);
    assert_int_equal(s.empty, 2);
    assert_int_equal(s.missing[0], 2);
    assert_true(st_expert_store_holds(&s, 5) && !st_expert_store_holds(&s, 6) && !st_expert_store_holds(&s, 7));
    st_expert_store_lend(&s, 0);
    assert_int_equal(s.empty, 4);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(st_expert_store_holds(&s, i), i < 4);
    free_both(&s, &p);
}

static uint32_t fill_again(struct st_expert_store *s)
{
    struct st_expert_swap swaps[ST_EXPERT_SWAPS];
    uint32_t n = st_expert_store_adapt(s, swaps);
    for (uint32_t i = 0; i < n; i++) {
        assert_false(st_expert_store_holds(s, swaps[i].slot));
        st_expert_store_put_in(s, &swaps[i]);
        assert_true(st_expert_store_holds(s, swaps[i].slot));
    }
    return n;
}

static void empty_slots_get_the_most_wanted_of_their_size_and_what_was_there(void **state)
{
    (void)state;
    struct st_expert_store s;
    struct st_expert_profile p;
    make_filled(&s, &p, 8 * SLOT + 4 * LARGE, 2 * SLOT + 4 * LARGE); /* 6 and 7 of layer 0, 0 to 3 of layer 1 */
    assert_int_equal(s.kept, 6);
    st_expert_store_lend(&s, 0);
    assert_int_equal(s.empty, 6);
    s.count[2 * EXPERTS + 5] = 3; /* small */
    s.count[1 * EXPERTS + 7] = 2; /* large, as these three */
    s.count[1 * EXPERTS + 6] = 1;
    s.count[1 * EXPERTS + 3] = 4;
    assert_int_equal(fill_again(&s), 6);
    assert_int_equal(s.empty, 0);
    static const uint8_t want[3] = {0x7f, 0xc9, 0x20}; /* 0 to 6; 0, 3, 6, 7; 5 */
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
        assert_int_equal(s.slot_of[i] != ST_NO_SLOT, want[i / EXPERTS] >> i % EXPERTS & 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(s.missing[l], EXPERTS - __builtin_popcount(want[l]));
    assert_int_equal(s.count[1 * EXPERTS + 3], 4); /* nothing was forgotten for it */
    free_both(&s, &p);
}

/* More than one adaptation brings; some are wanted, of others nobody knows any more that they had a slot. */
static void every_empty_slot_is_filled_in_the_end(void **state)
{
    (void)state;
    enum { MANY = 300, SLOTS = 250 };
    struct strata_error err;
    struct st_expert_store s = {.set = {.count = 1, .experts = MANY, .trunk_rows = 1}};
    s.set.layer = calloc(1, sizeof *s.set.layer);
    s.set.layer[0].slot = SLOT;
    assert_ok(st_expert_store_fill(&s, NULL, NULL, SLOTS * SLOT, SLOTS * SLOT, &err), &err);
    for (int round = 0; round < 3; round++) {
        st_expert_store_lend(&s, 20 * SLOT);
        assert_int_equal(s.empty, SLOTS - 20);
        for (int i = 0; i < 60; i++)
            s.count[(i * 37 + round * 101) % MANY] += 1;
        assert_int_equal(fill_again(&s), ST_EXPERT_SWAPS);
        for (int i = 0; i < MANY; i++) /* first of all who is wanted, up to 60 in each round */
            assert_true(s.count[i] < round + 1 || s.slot_of[i] != ST_NO_SLOT);
        assert_int_equal(fill_again(&s), ST_EXPERT_SWAPS);
        assert_int_equal(fill_again(&s), SLOTS - 20 - 2 * ST_EXPERT_SWAPS);
        assert_int_equal(s.empty, 0);
        assert_int_equal(s.missing[0], MANY - SLOTS);
        for (int i = 0; i < MANY; i++)
            assert_true(s.count[i] == 0 || s.slot_of[i] != ST_NO_SLOT);
    }
    st_expert_store_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_may_borrow_the_slots_of_the_least_wanted),
        cmocka_unit_test(host_memory_serves_experts_without_a_slot_before_those_in_lent_ones),
        cmocka_unit_test(a_prompt_takes_what_it_needs_and_kept_slots_stay),
        cmocka_unit_test(empty_slots_get_the_most_wanted_of_their_size_and_what_was_there),
        cmocka_unit_test(every_empty_slot_is_filled_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
