/* src/kernel/exact_math.h: errors against double precision over a dense sweep of all arguments, and the special values. */
#include "test.h"

#include <math.h>

#include "kernel/exact_math.h"

/* Distance in units of the last place of the exact value. */
static double ulps(float value, double exact)
{
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)value - exact) / unit;
}

/* Every 331st single-precision number in [from, to], both signs. */
static void sweep(float (*f)(float), double (*exact)(double), float from, float to, double bound)
{
    for (uint64_t bits = 0; bits < 0xff800000u; bits += 331) {
        float x = st_exact_float((unsigned)bits);
        if (!(x >= from && x <= to))
            continue;
        double error = ulps(f(x), exact(x));
        if (!(error <= bound))
            fail_msg("at %a: %a instead of %a, %.2f ulp", (double)x, (double)f(x), exact(x), error);
    }
}

static float own_exp(float x)
{
    return st_expf(x);
}
static float own_log(float x)
{
    return st_logf(x);
}
static float own_log1p(float x)
{
    return st_log1pf(x);
}
static float own_sigmoid(float x)
{
    return st_sigmoidf(x);
}
static float own_silu(float x)
{
    return st_siluf(x);
}
static float own_softplus(float x)
{
    return st_softplusf(x);
}
static double exact_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}
static double exact_silu(double x)
{
    return x * exact_sigmoid(x);
}
static double exact_softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static void errors_stay_within_the_stated_ulps(void **state)
{
    (void)state;
    sweep(own_exp, exp, ST_EXP_LOW, ST_EXP_HIGH, 1.06);
    sweep(own_log, log, 0x1p-149f, 3.4e38f, 0.96);
    sweep(own_log1p, log1p, 0.0f, 3.4e38f, 1.35);
    sweep(own_sigmoid, exact_sigmoid, ST_EXP_LOW, 1000.0f, 2.41);
    sweep(own_silu, exact_silu, ST_EXP_LOW, 1000.0f, 3.2);
    sweep(own_softplus, exact_softplus, ST_EXP_LOW, 1000.0f, 2.1);
}

static void special_arguments_have_defined_results(void **state)
{
    (void)state;
    float inf = INFINITY;
    assert_true(st_expf(-inf) == 0.0f && st_expf(-1e9f) == 0.0f && st_expf(inf) == inf && st_expf(89.0f) == inf);
    assert_true(st_expf(0.0f) == 1.0f && st_expf(-0.0f) == 1.0f && isnan(st_expf(NAN)));
    assert_true(st_expf(ST_EXP_LOW) >= 0x1p-126f && st_expf(nextafterf(ST_EXP_LOW, -inf)) == 0.0f);
    assert_true(isfinite(st_expf(ST_EXP_HIGH)) && isinf(st_expf(nextafterf(ST_EXP_HIGH, inf))));
    assert_true(st_logf(0.0f) == -inf && st_logf(-0.0f) == -inf && st_logf(inf) == inf && st_logf(1.0f) == 0.0f);
    assert_true(isnan(st_logf(-1.0f)) && isnan(st_logf(NAN)) && isnan(st_logf(-inf)));
    assert_true(st_log1pf(0.0f) == 0.0f && st_log1pf(inf) == inf && isnan(st_log1pf(NAN)));
    assert_true(st_sigmoidf(0.0f) == 0.5f && st_sigmoidf(inf) == 1.0f && st_sigmoidf(-inf) == 0.0f);
    assert_true(st_siluf(inf) == inf && st_siluf(-inf) == 0.0f && isnan(st_siluf(NAN)) && isnan(st_sigmoidf(NAN)));
    assert_true(st_softplusf(-inf) == 0.0f && st_softplusf(inf) == inf && st_softplusf(20.5f) == 20.5f);
    assert_true(isnan(st_softplusf(NAN)));
}

static void results_have_the_recorded_bits(void **state)
{
    (void)state;
    /* Any change of a step or a constant changes what devices must agree on, and shows here. */
    unsigned hash = 2166136261u;
    for (unsigned bits = 0; bits < 0x43000000u; bits += 65537) {
        for (unsigned sign = 0; sign < 2; sign++) {
            float x = st_exact_float(bits | sign << 31);
            float y[] = {st_expf(x), st_sigmoidf(x), st_siluf(x), st_softplusf(x), st_logf(sign ? -x : x)};
            for (size_t i = 0; i < sizeof y / sizeof *y; i++)
                hash = (hash ^ st_exact_bits(y[i])) * 16777619u;
        }
    }
    assert_int_equal(hash, 0xbbf2a77e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_stay_within_the_stated_ulps),
        cmocka_unit_test(special_arguments_have_defined_results),
        cmocka_unit_test(results_have_the_recorded_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
