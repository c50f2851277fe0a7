/* Opens weights of every type: 32 neighbouring elements of a row become signed bytes, four to a word in the order of the
 * elements, with the scales that docs/numerics.md gives them (a float for each 16 or 32 elements of the types of 32 and 64
 * elements, integers within the blocks of 256).
 *
 * A row lies in local memory, or where PART_SPACE says; it starts at an address that its type's blocks allow (PART_ALIGN). type is known when
 * compiled. Block layouts: src/format/quant_block.c. */
#ifndef ST_OPEN_H
#define ST_OPEN_H

#include "dialect.h"
#include "grids.h"

#ifndef PART_SPACE
#define PART_SPACE local
#endif

/* Types as numbered in files. */
#define T_F32 0
#define T_F16 1
#define T_Q4_0 2
#define T_Q4_1 3
#define T_Q5_0 6
#define T_Q5_1 7
#define T_Q8_0 8
#define T_Q2_K 10
#define T_Q3_K 11
#define T_Q4_K 12
#define T_Q5_K 13
#define T_Q6_K 14
#define T_IQ2_XXS 16
#define T_IQ2_XS 17
#define T_IQ3_XXS 18
#define T_IQ1_S 19
#define T_IQ4_NL 20
#define T_IQ3_S 21
#define T_IQ2_S 22
#define T_IQ4_XS 23
#define T_IQ1_M 29
#define T_BF16 30
#define T_MXFP4 39
#define T_NVFP4 40
#define T_Q2_0 42

#define PART_FLOAT(t) ((t) == T_F32 || (t) == T_F16 || (t) == T_BF16)
/* Blocks of 256 elements, Q8K activations. */
#define PART_LARGE(t) (((t) >= T_Q2_K && (t) <= T_IQ1_S) || ((t) >= T_IQ3_S && (t) <= T_IQ1_M))
/* Elements of a block and its bytes. */
#define PART_ELEMS(t) (PART_LARGE(t) ? 256 : PART_FLOAT(t) ? 1 : (t) == T_Q2_0 || (t) == T_NVFP4 ? 64 : 32)
#define PART_BYTES(t) \
    ((t) == T_F32       ? 4 \
     : (t) == T_F16     ? 2 \
     : (t) == T_BF16    ? 2 \
     : (t) == T_Q4_0    ? 18 \
     : (t) == T_Q4_1    ? 20 \
     : (t) == T_Q5_0    ? 22 \
     : (t) == T_Q5_1    ? 24 \
     : (t) == T_Q8_0    ? 34 \
     : (t) == T_Q2_K    ? 84 \
     : (t) == T_Q3_K    ? 110 \
     : (t) == T_Q4_K    ? 144 \
     : (t) == T_Q5_K    ? 176 \
     : (t) == T_Q6_K    ? 210 \
     : (t) == T_IQ2_XXS ? 66 \
     : (t) == T_IQ2_XS  ? 74 \
     : (t) == T_IQ3_XXS ? 98 \
     : (t) == T_IQ1_S   ? 50 \
     : (t) == T_IQ4_NL  ? 18 \
     : (t) == T_IQ3_S   ? 110 \
     : (t) == T_IQ2_S   ? 82 \
     : (t) == T_IQ4_XS  ? 136 \
     : (t) == T_IQ1_M   ? 56 \
     : (t) == T_MXFP4   ? 17 \
     : (t) == T_NVFP4   ? 36 \
                        : 18)
/* What the address of a row is a multiple of. */
#define PART_ALIGN(t) (PART_BYTES(t) % 4 == 0 ? 4 : PART_BYTES(t) % 2 == 0 ? 2 : 1)
/* A float minimum for each 32 elements; an integer minimum in blocks of 256. */
#define PART_OFFSET(t) ((t) == T_Q4_1 || (t) == T_Q5_1)
#define PART_MIN(t) ((t) == T_Q2_K || (t) == T_Q4_K || (t) == T_Q5_K)
/* Scales for each 16 elements instead of 32. */
#define PART_HALVES(t) \
    ((t) == T_NVFP4 || (t) == T_Q2_K || (t) == T_Q3_K || (t) == T_Q6_K || (t) == T_IQ2_XS || (t) == T_IQ2_S || (t) == T_IQ1_M)

/* 32 elements. A scale that serves all of them stands in both places. */
struct part {
    uint w[8];
    float d[2];  /* of each 16; blocks of 256: d of the block, twice */
    float m;     /* PART_OFFSET: what is added to each weight; PART_MIN: dmin of the block */
    int scale[2], min[2]; /* of each 16, blocks of 256 */
};

INLINE uint part_16(int type, PART_SPACE const uchar *p)
{
    return PART_ALIGN(type) > 1 ? *(PART_SPACE const ushort *)p : p[0] | (uint)p[1] << 8;
}

/* at: bytes from the start of the block, where that start has the type's alignment; known when compiled, as far as its
 * remainder by 4 goes. */
INLINE uint part_32(int type, PART_SPACE const uchar *p, uint at)
{
    if (PART_ALIGN(type) == 4 && at % 4 == 0)
        return *(PART_SPACE const uint *)(p + at);
    return part_16(type, p + at) | part_16(type, p + at + 2) << 16;
}

/* `count` words from p on, which has the type's alignment. From an odd multiple of 2 on they are cut out of the words around
 * them: half as many reads. */
INLINE void part_run(int type, uint *w, PART_SPACE const uchar *p, uint count)
{
    if (PART_ALIGN(type) == 1) {
        UNROLL
        for (uint i = 0; i < count; i++)
            w[i] = part_32(type, p, 4 * i);
        return;
    }
    const bool odd = PART_ALIGN(type) == 2 && ((uint)(ulong)p & 2) != 0;
    PART_SPACE const uint *from = (PART_SPACE const uint *)(p - (odd ? 2 : 0));
    UNROLL
    for (uint i = 0; i < count; i++)
        w[i] = from[i];
    if (PART_ALIGN(type) == 2) {
        /* the upper half of the word behind them, which may be the row's last bytes */
        const uint last = odd ? *(PART_SPACE const ushort *)(p + 4 * count - 2) : 0;
        UNROLL
        for (uint i = 0; i < count; i++)
            w[i] = st_word_from(w[i], i + 1 < count ? w[i + 1] : last, odd);
    }
}

INLINE float part_half(int type, PART_SPACE const uchar *p)
{
    return st_float_of_half((ushort)part_16(type, p));
}

/* Bytes of the words get value c less; no byte leaves the signed range. */
INLINE void part_less(uint *w, uint c)
{
    UNROLL
    for (uint i = 0; i < 8; i++)
        w[i] = (w[i] + (0x80u - c) * 0x01010101u) ^ 0x80808080u;
}

/* Sixteen bytes of two nibbles: element j in the low half of byte j, element 16 + j in the high one. */
INLINE void part_nibbles(int type, struct part *a, PART_SPACE const uchar *p, uint at)
{
    uint q[4];
    part_run(type, q, p + at, 4);
    UNROLL
    for (uint i = 0; i < 4; i++) {
        a->w[i] = q[i] & 0x0f0f0f0fu;
        a->w[4 + i] = q[i] >> 4 & 0x0f0f0f0fu;
    }
}

#define FP4_TABLE 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu
#define IQ4_TABLE 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u

/* The same, each nibble through a table. */
INLINE void part_lookup(int type, struct part *a, PART_SPACE const uchar *p, uint at, uint t0, uint t1, uint t2, uint t3)
{
    uint q[4];
    part_run(type, q, p + at, 4);
    UNROLL
    for (uint i = 0; i < 4; i++) {
        st_lookup_nibbles(q[i], t0, t1, t2, t3, &a->w[i], &a->w[4 + i]);
        st_sort_nibbles(&a->w[i], &a->w[4 + i]);
    }
}

/* Bit i of high becomes bit 4 of element i. */
INLINE void part_fifth(struct part *a, uint high)
{
    UNROLL
    for (uint i = 0; i < 8; i++)
        a->w[i] |= ((high >> 4 * i & 15u) * 0x00204081u & 0x01010101u) << 4;
}

INLINE float part_e8m0(uint e)
{
    return st_float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

INLINE float part_ue4m3(uint v)
{
    v &= 0x7f;
    if (v == 0x7f)
        return 0.0f;
    return v < 8 ? (float)v * 0.0009765625f : st_float_of(((v >> 3) + 119) << 23 | (v & 7) << 20);
}

/* 64 elements in 36 bytes; 16 elements for each scale in 8 bytes, low nibbles first. */
INLINE void part_open_nvfp4(struct part *a, PART_SPACE const uchar *p, uint number)
{
    UNROLL
    for (uint t = 0; t < 2; t++) {
        a->d[t] = part_ue4m3(p[2 * number + t]);
        UNROLL
        for (uint i = 0; i < 2; i++) {
            uint low, high;
            st_lookup_nibbles(part_32(T_NVFP4, p + 16 * number, 4 + 8 * t + 4 * i), FP4_TABLE, &low, &high);
            st_sort_nibbles(&low, &high);
            a->w[4 * t + i] = low;
            a->w[4 * t + 2 + i] = high;
        }
    }
}

/* Part `number` of the row, types of 32 and 64 elements. */
INLINE void part_open_small(int type, struct part *a, PART_SPACE const uchar *row, uint number)
{
    const uint per = PART_ELEMS(type) / 32;
    PART_SPACE const uchar *p = row + number / per * PART_BYTES(type);
    number %= per;
    a->m = 0.0f;
    if (type == T_NVFP4) {
        part_open_nvfp4(a, p, number);
        return;
    }
    a->d[0] = a->d[1] = type == T_MXFP4 ? part_e8m0(p[0]) : part_half(type, p);
    if (type == T_Q8_0) {
        part_run(type, a->w, p + 2, 8);
    } else if (type == T_Q2_0) {
        UNROLL
        for (uint i = 0; i < 4; i++) {
            const uint q = part_16(type, p + 2 + 8 * number + 2 * i); /* eight elements */
            a->w[2 * i] = (q & 3) | (q << 6 & 0x300) | (q << 12 & 0x30000) | (q << 18 & 0x3000000);
            a->w[2 * i + 1] = (q >> 8 & 3) | (q >> 2 & 0x300) | (q << 4 & 0x30000) | (q << 10 & 0x3000000);
        }
        part_less(a->w, 1);
    } else if (type == T_IQ4_NL) {
        part_lookup(type, a, p, 2, IQ4_TABLE);
    } else if (type == T_MXFP4) {
        part_lookup(type, a, p, 1, FP4_TABLE);
    } else if (type == T_Q4_0) {
        part_nibbles(type, a, p, 2);
        part_less(a->w, 8);
    } else if (type == T_Q5_0) {
        part_nibbles(type, a, p, 6);
        part_fifth(a, part_32(type, p, 2));
        part_less(a->w, 16);
    } else { /* Q4_1, Q5_1 */
        a->m = part_half(type, p + 2);
        part_nibbles(type, a, p, type == T_Q5_1 ? 8 : 4);
        if (type == T_Q5_1)
            part_fifth(a, part_32(type, p, 4));
    }
}

/* Scale and minimum of sub-block k of Q4_K and Q5_K. */
INLINE void part_scale_k4(struct part *a, PART_SPACE const uchar *p, uint k)
{
    PART_SPACE const uchar *sc = p + 4;
    const uint j = k % 4, first = sc[j], second = sc[j + 4], third = sc[j + 8];
    a->scale[0] = a->scale[1] = (int)(k < 4 ? first & 63 : (third & 15) | first >> 6 << 4);
    a->min[0] = a->min[1] = (int)(k < 4 ? second & 63 : third >> 4 | second >> 6 << 4);
    a->m = part_half(T_Q4_K, p + 2);
}

/* Sub-block k of the types without a grid. p: the block. */
INLINE void part_open_k(int type, struct part *a, PART_SPACE const uchar *p, uint k)
{
    a->m = 0.0f;
    a->min[0] = a->min[1] = 0;
    a->d[0] = part_half(type, p + (type == T_Q6_K ? 208 : type == T_Q2_K ? 80 : type == T_Q3_K ? 108 : 0));
    if (type == T_Q4_K || type == T_Q5_K) {
        part_scale_k4(a, p, k);
        PART_SPACE const uchar *q = p + 32 * (k / 2);
        UNROLL
        for (uint i = 0; i < 8; i++) {
            a->w[i] = part_32(type, q, (type == T_Q4_K ? 16 : 48) + 4 * i) >> (k % 2 * 4) & 0x0f0f0f0fu;
            if (type == T_Q5_K)
                a->w[i] |= (part_32(type, p, 16 + 4 * i) >> k & 0x01010101u) << 4;
        }
    } else if (type == T_Q6_K) {
        const uint n = k / 4, g = k % 4;
        uint high[8];
        part_run(type, a->w, p + 64 * n + 32 * (g % 2), 8);
        part_run(type, high, p + 128 + 32 * n, 8);
        UNROLL
        for (uint i = 0; i < 8; i++)
            a->w[i] = (a->w[i] >> (g / 2 * 4) & 0x0f0f0f0fu) | (high[i] >> 2 * g & 0x03030303u) << 4;
        part_less(a->w, 32);
        UNROLL
        for (uint t = 0; t < 2; t++)
            a->scale[t] = (int)(signed char)p[192 + 2 * k + t];
    } else if (type == T_Q2_K || type == T_Q3_K) {
        uint high[8];
        part_run(type, a->w, p + 32 * (k / 4) + (type == T_Q2_K ? 16 : 32), 8);
        if (type == T_Q3_K)
            part_run(type, high, p, 8);
        UNROLL
        for (uint i = 0; i < 8; i++) {
            a->w[i] = a->w[i] >> (k % 4 * 2) & 0x03030303u;
            if (type == T_Q3_K)
                a->w[i] |= (high[i] >> k & 0x01010101u) << 2;
        }
        if (type == T_Q2_K) {
            a->m = part_half(type, p + 82);
        } else {
            part_less(a->w, 4); /* the mask's bit says that 4 is not taken away */
        }
        UNROLL
        for (uint t = 0; t < 2; t++) {
            const uint j = 2 * k + t;
            if (type == T_Q2_K) {
                a->scale[t] = p[j] & 15;
                a->min[t] = p[j] >> 4;
            } else {
                PART_SPACE const uchar *sc = p + 96;
                const uint low = j < 8 ? sc[j] & 15u : (uint)sc[j - 8] >> 4;
                a->scale[t] = (int)(low | ((uint)sc[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
            }
        }
    } else { /* IQ4_XS */
        const uint low = (uint)p[4 + k / 2] >> (k % 2 * 4) & 15;
        a->scale[0] = a->scale[1] = (int)(low | (part_16(type, p + 2) >> 2 * k & 3) << 4) - 32;
        part_lookup(type, a, p + 16 * k, 8, IQ4_TABLE);
    }
    a->d[1] = a->d[0];
}

/* ---- types with a grid; grid: the type's points in local memory, packed as in grids.inc ---- */

#define GRID_POINTS(t) \
    ((t) == T_IQ1_S || (t) == T_IQ1_M ? 2048 : (t) == T_IQ2_S ? 1024 : (t) == T_IQ2_XS || (t) == T_IQ3_S ? 512 : 256)
#define PART_GRID(t) \
    ((t) == T_IQ1_S || (t) == T_IQ1_M || (t) == T_IQ2_XXS || (t) == T_IQ2_XS || (t) == T_IQ2_S || (t) == T_IQ3_XXS || \
     (t) == T_IQ3_S)
/* Words of local memory for the grid. */
#define GRID_WORDS(t) (PART_GRID(t) ? GRID_POINTS(t) / 2 : 1)

/* The group's items bring the grid to local memory; a barrier follows before it is used. */
INLINE void part_load_grid(int type, local uint *grid, uint group)
{
    if (!PART_GRID(type))
        return;
    ST_TABLE_AT ushort *from = type == T_IQ1_S || type == T_IQ1_M ? grid_iq1s
                               : type == T_IQ2_XXS               ? grid_iq2xxs
                               : type == T_IQ2_XS                ? grid_iq2xs
                               : type == T_IQ2_S                 ? grid_iq2s
                               : type == T_IQ3_XXS               ? grid_iq3xxs
                                                                 : grid_iq3s;
    for (uint i = st_item(); i < GRID_WORDS(type); i += group)
        grid[i] = from[2 * i] | (uint)from[2 * i + 1] << 16;
}

INLINE uint grid_point(local const uint *grid, uint index)
{
    return ((local const ushort *)grid)[index];
}

/* Four indices of two bits, one to a byte. */
INLINE uint grid_spread2(uint v)
{
    v &= 0xff;
    v = (v | v << 12) & 0x000f000fu;
    return (v | v << 6) & 0x03030303u;
}

/* Four indices of three bits. */
INLINE uint grid_spread3(uint v)
{
    return (v & 7) | (v << 5 & 0x700) | (v << 10 & 0x70000) | (v << 15 & 0x7000000);
}

/* Negates byte j of w where bit j of signs is set; no byte is 0. */
INLINE uint grid_signs(uint w, uint signs)
{
    const uint ones = (signs & 15) * 0x00204081u & 0x01010101u;
    return (w ^ ones * 0xffu) + ones;
}

/* Seven sign bits and the eighth, which makes their number even. */
INLINE uint grid_signs7(uint s)
{
    uint parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 1) << 7;
}

/* Eight elements l of a part: values 8 25 43. */
INLINE void grid_put2(struct part *a, uint l, uint point, uint signs)
{
    UNROLL
    for (uint i = 0; i < 2; i++) {
        const uint x = grid_spread2(point >> 8 * i);
        a->w[2 * l + i] = grid_signs(0x08080808u + (x | x << 4) + (x >> 1 & 0x01010101u), signs >> 4 * i);
    }
}

/* Eighths: 8 (index - 1) + 1 or - 1. */
INLINE void grid_put1(struct part *a, uint l, uint point, uint negative)
{
    UNROLL
    for (uint i = 0; i < 2; i++)
        a->w[2 * l + i] = ((grid_spread2(point >> 8 * i) << 3) + (negative ? 0x77777777u : 0x79797979u)) ^ 0x80808080u;
}

/* Two points of four elements. xxs: values 4 12 .. 52 62, otherwise 1 3 .. 15. */
INLINE void grid_put3(bool xxs, struct part *a, uint l, uint first, uint second, uint signs)
{
    UNROLL
    for (uint i = 0; i < 2; i++) {
        const uint x = grid_spread3(i ? second : first);
        const uint v = xxs ? 0x04040404u + (x << 3) + ((x & x >> 1 & x >> 2 & 0x01010101u) << 1) : 0x01010101u + (x << 1);
        a->w[2 * l + i] = grid_signs(v, signs >> 4 * i);
    }
}

INLINE void part_open_iq2(int type, struct part *a, PART_SPACE const uchar *p, local const uint *grid, uint k)
{
    const uint nibbles = type == T_IQ2_XXS ? 0 : p[(type == T_IQ2_XS ? 66 : 74) + k];
    const uint a32 = type == T_IQ2_XXS ? part_32(type, p + 8 * k, 6) : 0;
    a->d[0] = 0.125f * part_half(type, p);
    a->scale[0] = (int)(2 * (type == T_IQ2_XXS ? a32 >> 28 : nibbles & 15) + 1);
    a->scale[1] = (int)(2 * (type == T_IQ2_XXS ? a32 >> 28 : nibbles >> 4) + 1);
    UNROLL
    for (uint l = 0; l < 4; l++) {
        uint index, signs;
        if (type == T_IQ2_XXS) {
            index = p[2 + 8 * k + l];
            signs = grid_signs7(a32 >> 7 * l & 127);
        } else if (type == T_IQ2_XS) {
            const uint v = part_16(type, p + 2 + 2 * (4 * k + l));
            index = v & 511;
            signs = grid_signs7(v >> 9);
        } else {
            index = p[2 + 4 * k + l] | ((uint)p[66 + k] >> 2 * l & 3) << 8;
            signs = p[34 + 4 * k + l];
        }
        grid_put2(a, l, grid_point(grid, index), signs);
    }
}

INLINE void part_open_iq3(int type, struct part *a, PART_SPACE const uchar *p, local const uint *grid, uint k)
{
    const bool xxs = type == T_IQ3_XXS;
    const uint a32 = xxs ? part_32(type, p + 4 * k, 66) : 0, high = xxs ? 0 : p[66 + k];
    a->d[0] = xxs ? 0.25f * part_half(type, p) : part_half(type, p);
    a->scale[0] = a->scale[1] = (int)(2 * (xxs ? a32 >> 28 : (uint)p[106 + k / 2] >> 4 * (k % 2) & 15) + 1);
    UNROLL
    for (uint l = 0; l < 4; l++) {
        PART_SPACE const uchar *g = p + 2 + 8 * k + 2 * l;
        const uint first = g[0] | (high >> 2 * l & 1) << 8, second = g[1] | (high >> (2 * l + 1) & 1) << 8;
        grid_put3(xxs, a, l, grid_point(grid, first), grid_point(grid, second),
                  xxs ? grid_signs7(a32 >> 7 * l & 127) : p[74 + 4 * k + l]);
    }
}

INLINE void part_open_iq1(int type, struct part *a, PART_SPACE const uchar *p, local const uint *grid, uint k)
{
    if (type == T_IQ1_S) {
        const uint high = part_16(type, p + 34 + 2 * k);
        a->d[0] = 0.125f * part_half(type, p);
        a->scale[0] = a->scale[1] = (int)(2 * (high >> 12 & 7) + 1);
        UNROLL
        for (uint l = 0; l < 4; l++)
            grid_put1(a, l, grid_point(grid, p[2 + 4 * k + l] | (high >> 3 * l & 7) << 8), high >> 15);
        return;
    }
    uint d = 0;
    UNROLL
    for (uint i = 0; i < 4; i++)
        d |= part_16(type, p + 48 + 2 * i) >> 12 << 4 * i;
    const uint s = part_16(type, p + 48 + 2 * (k / 2)) >> 6 * (k % 2);
    a->d[0] = 0.125f * st_float_of_half((ushort)d);
    a->scale[0] = (int)(2 * (s & 7) + 1);
    a->scale[1] = (int)(2 * (s >> 3 & 7) + 1);
    UNROLL
    for (uint l = 0; l < 4; l++) {
        const uint nibble = (uint)p[32 + 2 * k + l / 2] >> 4 * (l % 2) & 15;
        grid_put1(a, l, grid_point(grid, p[4 * k + l] | (nibble & 7) << 8), nibble >> 3);
    }
}

/* Part `number` (32 elements) of a row. */
INLINE void part_open(int type, struct part *a, PART_SPACE const uchar *row, local const uint *grid, uint number)
{
    if (!PART_LARGE(type)) {
        part_open_small(type, a, row, number);
        return;
    }
    PART_SPACE const uchar *p = row + number / 8 * PART_BYTES(type);
    const uint k = number % 8;
    if (!PART_GRID(type)) {
        part_open_k(type, a, p, k);
        return;
    }
    a->m = 0.0f;
    a->min[0] = a->min[1] = 0;
    if (type == T_IQ3_XXS || type == T_IQ3_S)
        part_open_iq3(type, a, p, grid, k);
    else if (type == T_IQ1_S || type == T_IQ1_M)
        part_open_iq1(type, a, p, grid, k);
    else
        part_open_iq2(type, a, p, grid, k);
    a->d[1] = a->d[0];
}

#endif
