/* exp, log and what is made of them, with one defined result on every processor.
 *
 * Only + - * / and fma in round-to-nearest single precision, comparisons and integer operations are used, each of which
 * IEEE 754 defines to the last bit. Scalar C, any vector form that does the same steps per lane, and GPU code therefore
 * give the same bits as long as nothing contracts, reorders or flushes (the build sets -ffp-contract=off). Selections are
 * written as conditional expressions so that a loop over an array vectorises.
 *
 * Largest errors, measured against double precision over every representable argument (tests/unit/test_exact_math.c
 * walks a part of them): st_expf 1.06 ulp, st_logf 0.96, st_log1pf 1.35, st_sigmoidf 2.41, st_siluf 3.20,
 * st_softplusf 2.10.
 *
 * The header is valid C and OpenCL C. A GPU dialect may define ST_FMAF (the correctly rounded a * b + c) beforehand. */
#ifndef ST_KERNEL_EXACT_MATH_H
#define ST_KERNEL_EXACT_MATH_H

#ifdef __OPENCL_C_VERSION__
#define ST_EXACT_BITS(x) as_uint(x)
#define ST_EXACT_FLOAT(u) as_float(u)
#ifndef ST_FMAF
#define ST_FMAF(a, b, c) fma(a, b, c)
#endif
#else
static inline unsigned st_exact_bits(float x)
{
    unsigned u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}
static inline float st_exact_float(unsigned u)
{
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}
#define ST_EXACT_BITS(x) st_exact_bits(x)
#define ST_EXACT_FLOAT(u) st_exact_float(u)
#ifndef ST_FMAF
#define ST_FMAF(a, b, c) __builtin_fmaf(a, b, c)
#endif
#endif

/* Arguments of st_expf outside [LOW, HIGH] give 0 and infinity. LOW is just above the logarithm of the smallest normal
 * number: results are never subnormal, so a device that flushes subnormal numbers agrees. */
#define ST_EXP_LOW (-0x1.5d5898p+6f) /* -87.33652 */
#define ST_EXP_HIGH 0x1.62e42ep+6f   /* 88.722832, the largest argument with a finite result */

/* e^x. NaN stays NaN, -infinity gives 0, +infinity gives infinity.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q a minimax polynomial (error below 5e-9); 2^n is added to
 * the exponent. n comes from adding 1.5 * 2^23, which leaves the rounded integer in the low bits of the sum. */
static inline float st_expf(float x)
{
    const float shifter = 0x1.8p23f;
    float shifted = ST_FMAF(x, 0x1.715476p+0f, shifter);
    float n = shifted - shifter;
    float r = ST_FMAF(n, -0x1.62e4p-1f, x); /* exact: 16 bits times 8 bits, and the difference fits */
    r = ST_FMAF(n, -0x1.7f7d1cp-20f, r);
    float q = ST_FMAF(r, 0x1.6db4cep-10f, 0x1.123bd0p-7f);
    q = ST_FMAF(q, r, 0x1.55545ep-5f);
    q = ST_FMAF(q, r, 0x1.55548ep-3f);
    q = ST_FMAF(q, r, 0.5f);
    float p = 1.0f + ST_FMAF(q * r, r, r);
    float y = ST_EXACT_FLOAT(ST_EXACT_BITS(p) + (ST_EXACT_BITS(shifted) << 23));
    y = x < ST_EXP_LOW ? 0.0f : y;
    y = x > ST_EXP_HIGH ? ST_EXACT_FLOAT(0x7f800000u) : y;
    return x == x ? y : x;
}

/* Natural logarithm. 0 gives -infinity, negative numbers and NaN give NaN, infinity stays.
 * x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), s = f / (2 + f), z = s^2; because 2 s = f - s f,
 * log(1 + f) = 2 atanh(s) = f - s (f - z R(z)) with R a minimax polynomial (error below 2e-9). */
static inline float st_logf(float x)
{
    const float infinity = ST_EXACT_FLOAT(0x7f800000u);
    int small = x < 0x1p-126f;
    float scaled = small ? x * 0x1p25f : x;
    /* Subtracting the bits of sqrt(1/2) before the shift makes the exponent that of a fraction in the wanted range. */
    unsigned offset = ST_EXACT_BITS(scaled) - 0x3f3504f3u;
    int exponent = (int)offset >> 23;
    float fraction = ST_EXACT_FLOAT((offset & 0x007fffffu) + 0x3f3504f3u);
    float n = (float)(exponent - (small ? 25 : 0));
    float f = fraction - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    float R = ST_FMAF(z, 0x1.31e678p-2f, 0x1.995e9cp-2f);
    R = ST_FMAF(R, z, 0x1.55557ap-1f);
    float rest = s * ST_FMAF(-z, R, f);
    float y = ST_FMAF(n, 0x1.62e4p-1f, f - ST_FMAF(-n, 0x1.7f7d1cp-20f, rest));
    y = x == 0.0f ? -infinity : y;
    y = x == infinity ? x : y;
    return x >= 0.0f ? y : ST_EXACT_FLOAT(0x7fc00000u);
}

/* log(1 + x) for x >= 0: what rounding 1 + x lost is added back to first order. Infinity stays, NaN stays NaN. */
static inline float st_log1pf(float x)
{
    float u = 1.0f + x;
    float lost = x - (u - 1.0f);
    float y = st_logf(u) + lost / u;
    return u <= ST_EXACT_FLOAT(0x7f7fffffu) ? y : x;
}

/* 1 / (1 + e^-x), computed from e^-|x| so that nothing overflows and no intermediate is subnormal. */
static inline float st_sigmoidf(float x)
{
    float e = st_expf(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* x * sigmoid(x); 0 (with the sign of x) where the sigmoid is 0, also for -infinity. */
static inline float st_siluf(float x)
{
    float y = x * st_sigmoidf(x);
    return x < ST_EXP_LOW ? -0.0f : y;
}

/* log(1 + e^x), and x itself above 20, as the reference of the model defines it. */
static inline float st_softplusf(float x)
{
    float y = st_log1pf(st_expf(x > 20.0f ? 20.0f : x));
    return x > 20.0f ? x : y;
}

#endif
