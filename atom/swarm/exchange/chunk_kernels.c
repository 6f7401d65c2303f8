/* Loops over the chunks of an all-reduce, each in one pass over memory: sums, and the codecs.
 *
 * Same bits on every machine. Every operation below is one IEEE 754 operation in round-to-nearest,
 * in the order written: the file is compiled without contraction and without fast mathematics.
 * Elements do not depend on each other, but for the largest of a block, which no order changes.
 *
 * What is not finite, or too large, is noticed on the way, at the price of one comparison: a size as
 * an integer orders like the number, and infinities and NaN come last.
 *
 * Plain C without Python: loaded with ctypes, which releases the interpreter's lock.
 */

#include "../../base/kernel.h"

enum { BLOCK = 1024, SMALL_BLOCK = 64 }; /* numbers that share a scale: of eight bits, of four */

#define INFINITE 0x7f800000
#define SMALLEST_SCALE 0x1p-100f
#define MOST_8 127 /* steps, up and down */
#define MOST_4 7
/* Adding it to less than 2^22 rounds to an integer, ties to even, which the low bits then hold. */
#define ROUNDER 0x1.8p23f

INLINE int32_t size_of(float value) { return (int32_t)(bits_of(value) & 0x7fffffffu); }
INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- out = (arrived + own) * factor, which is not 0; own may be out. Says whether anything is not finite. */

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

#define ADD_LOOP(ARRIVED)                                                                        \
    INDEPENDENT                                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                        \
        float result = ((ARRIVED) + own[i]) * factor;                                            \
        out[i] = result;                                                                         \
        worst = larger(worst, size_of(result));                                                  \
    }

INLINE int32_t add_float32(const void *wire, const float *own, float factor, float *out,
                           int64_t count) {
    const float *restrict arrived = wire;
    int32_t worst = 0;
    ADD_LOOP(arrived[i])
    return worst >= INFINITE;
}

INLINE int32_t add_bfloat16(const void *wire, const float *own, float factor, float *out,
                            int64_t count) {
    const uint16_t *restrict arrived = wire;
    int32_t worst = 0;
    ADD_LOOP(from_bfloat16(arrived[i]))
    return worst >= INFINITE;
}

/* See Int8 in atom/swarm/exchange/codec.py for the format: all scales, then all steps. */
struct int8_wire {
    uint16_t *scales;
    int8_t *steps;
};

INLINE struct int8_wire int8_parts(const void *wire, int64_t count) {
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
    return (struct int8_wire){(uint16_t *)wire, (int8_t *)wire + 2 * blocks};
}

INLINE int64_t in_block(int64_t start, int64_t count, int64_t block) {
    return count - start < block ? count - start : block;
}

INLINE int32_t add_int8(const void *wire, const float *all_own, float factor, float *all_out,
                        int64_t all) {
    const struct int8_wire parts = int8_parts(wire, all);
    int32_t worst = 0;
    for (int64_t start = 0; start < all; start += BLOCK) {
        const float scale = from_bfloat16(parts.scales[start / BLOCK]);
        const int8_t *restrict steps = parts.steps + start;
        const float *own = all_own + start;
        float *out = all_out + start;
        const int64_t count = in_block(start, all, BLOCK);
        ADD_LOOP((float)steps[i] * scale)
    }
    return worst >= INFINITE;
}

/* See Int4: all scales, then a byte for two steps, each plus 8: that of a number of the block's first half in the
 * low bits, that of its fellow in the second half in the high ones. */
struct int4_wire {
    uint16_t *scales;
    uint8_t *pairs;
};

INLINE struct int4_wire int4_parts(const void *wire, int64_t count) {
    int64_t blocks = (count + SMALL_BLOCK - 1) / SMALL_BLOCK;
    return (struct int4_wire){(uint16_t *)wire, (uint8_t *)wire + 2 * blocks};
}

/* Of a block of so many numbers, and of the fellow that an odd number's last one lacks: 0. */
INLINE void unpack(const uint8_t *restrict pairs, int32_t *restrict steps, int64_t count) {
    const int64_t half = (count + 1) / 2;
    for (int64_t i = 0; i < half; i++) {
        steps[i] = (pairs[i] & 15) - 8;
        steps[i + half] = (pairs[i] >> 4) - 8;
    }
}

INLINE int32_t add_int4(const void *wire, const float *all_own, float factor, float *all_out,
                        int64_t all) {
    const struct int4_wire parts = int4_parts(wire, all);
    int32_t worst = 0, steps[SMALL_BLOCK];
    for (int64_t start = 0; start < all; start += SMALL_BLOCK) {
        const float scale = from_bfloat16(parts.scales[start / SMALL_BLOCK]);
        const float *own = all_own + start;
        float *out = all_out + start;
        const int64_t count = in_block(start, all, SMALL_BLOCK);
        unpack(parts.pairs + start / 2, steps, count);
        ADD_LOOP((float)steps[i] * scale)
    }
    return worst >= INFINITE;
}

/* ---- From the wire to out. Says whether a number is not finite. */

INLINE int32_t decode_bfloat16(const void *wire, float *restrict out, int64_t count) {
    const uint16_t *restrict arrived = wire;
    int32_t worst = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = from_bfloat16(arrived[i]);
        worst = larger(worst, size_of(out[i]));
    }
    return worst >= INFINITE;
}

INLINE int32_t decode_int8(const void *wire, float *restrict all_out, int64_t all) {
    const struct int8_wire parts = int8_parts(wire, all);
    int32_t worst = 0;
    for (int64_t start = 0; start < all; start += BLOCK) {
        const float scale = from_bfloat16(parts.scales[start / BLOCK]);
        const int8_t *restrict steps = parts.steps + start;
        float *restrict out = all_out + start;
        const int64_t count = in_block(start, all, BLOCK);
        for (int64_t i = 0; i < count; i++) {
            out[i] = (float)steps[i] * scale;
            worst = larger(worst, size_of(out[i]));
        }
    }
    return worst >= INFINITE;
}

INLINE int32_t decode_int4(const void *wire, float *restrict all_out, int64_t all) {
    const struct int4_wire parts = int4_parts(wire, all);
    int32_t worst = 0, steps[SMALL_BLOCK];
    for (int64_t start = 0; start < all; start += SMALL_BLOCK) {
        const float scale = from_bfloat16(parts.scales[start / SMALL_BLOCK]);
        float *restrict out = all_out + start;
        const int64_t count = in_block(start, all, SMALL_BLOCK);
        unpack(parts.pairs + start / 2, steps, count);
        for (int64_t i = 0; i < count; i++) {
            out[i] = (float)steps[i] * scale;
            worst = larger(worst, size_of(out[i]));
        }
    }
    return worst >= INFINITE;
}

/* ---- To the wire. lost = values - what will be decoded, unless it is NULL. */

INLINE int32_t encode_bfloat16(const float *restrict values, void *wire, float *restrict lost,
                               int64_t count) {
    uint16_t *restrict rounded = wire;
    int32_t worst = 0;
    for (int64_t i = 0; i < count; i++) {
        rounded[i] = to_bfloat16(values[i]);
        worst = larger(worst, size_of(from_bfloat16(rounded[i])));
    }
    if (lost)
        for (int64_t i = 0; i < count; i++) lost[i] = values[i] - from_bfloat16(rounded[i]);
    return worst >= INFINITE;
}

INLINE int32_t largest_of(const float *restrict values, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = larger(largest, size_of(values[i]));
    return largest;
}

/* The scale with which a block's largest size becomes `most` steps; 0 for a block that is as good as zeros. */
INLINE float scale_of(int32_t largest, int32_t most) {
    const float wanted = float_of((uint32_t)largest) * (1.0f / (float)most);
    const float scale = from_bfloat16(to_bfloat16(wanted));
    return scale < SMALLEST_SCALE ? 0.0f : scale;
}

INLINE float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

INLINE int32_t step_of(float value, float inverse) {
    return (int32_t)(bits_of(value * inverse + ROUNDER) - bits_of(ROUNDER));
}

INLINE int32_t encode_int8(const float *restrict all_values, void *wire, float *restrict all_lost,
                           int64_t all) {
    const struct int8_wire parts = int8_parts(wire, all);
    int32_t worst = 0;
    for (int64_t start = 0; start < all; start += BLOCK) {
        const float *restrict values = all_values + start;
        int8_t *restrict steps = parts.steps + start;
        const int64_t count = in_block(start, all, BLOCK);
        const float scale = scale_of(largest_of(values, count), MOST_8), inverse = inverse_of(scale);
        worst = larger(worst, size_of(MOST_8 * scale)); /* the largest, as it will be decoded */
        parts.scales[start / BLOCK] = (uint16_t)(bits_of(scale) >> 16);
        for (int64_t i = 0; i < count; i++) steps[i] = (int8_t)step_of(values[i], inverse);
        if (all_lost)
            for (int64_t i = 0; i < count; i++)
                all_lost[start + i] = values[i] - (float)steps[i] * scale;
    }
    return worst >= INFINITE;
}

INLINE int32_t encode_int4(const float *restrict all_values, void *wire, float *restrict all_lost,
                           int64_t all) {
    const struct int4_wire parts = int4_parts(wire, all);
    int32_t worst = 0, steps[SMALL_BLOCK];
    for (int64_t start = 0; start < all; start += SMALL_BLOCK) {
        const float *restrict values = all_values + start;
        uint8_t *restrict pairs = parts.pairs + start / 2;
        const int64_t count = in_block(start, all, SMALL_BLOCK), half = (count + 1) / 2;
        const float scale = scale_of(largest_of(values, count), MOST_4), inverse = inverse_of(scale);
        worst = larger(worst, size_of(MOST_4 * scale));
        parts.scales[start / SMALL_BLOCK] = (uint16_t)(bits_of(scale) >> 16);
        for (int64_t i = 0; i < count; i++) steps[i] = step_of(values[i], inverse);
        if (count % 2) steps[count] = 0;
        for (int64_t i = 0; i < half; i++)
            pairs[i] = (uint8_t)((steps[i] + 8) | (steps[i + half] + 8) << 4);
        if (all_lost)
            for (int64_t i = 0; i < count; i++)
                all_lost[start + i] = values[i] - (float)steps[i] * scale;
    }
    return worst >= INFINITE;
}

INLINE int32_t too_large(const float *restrict values, int64_t count, float largest) {
    return largest_of(values, count) > size_of(largest);
}

/* ---- What Python calls. `level`: 0 plain instructions, 1 AVX2, 2 AVX-512; at most the processor's. */

#define ADD (const void *wire, const float *own, float factor, float *out, int64_t count
#define DECODE (const void *wire, float *out, int64_t count
#define ENCODE (const float *values, void *wire, float *lost, int64_t count
#define SIZE (const float *values, int64_t count, float largest

#define ALL(DEFINE, ...)                                                                         \
    DEFINE(int32_t, add_float32, ADD, (wire, own, factor, out, count), __VA_ARGS__)              \
    DEFINE(int32_t, add_bfloat16, ADD, (wire, own, factor, out, count), __VA_ARGS__)             \
    DEFINE(int32_t, add_int8, ADD, (wire, own, factor, out, count), __VA_ARGS__)                 \
    DEFINE(int32_t, add_int4, ADD, (wire, own, factor, out, count), __VA_ARGS__)                 \
    DEFINE(int32_t, decode_bfloat16, DECODE, (wire, out, count), __VA_ARGS__)                    \
    DEFINE(int32_t, decode_int8, DECODE, (wire, out, count), __VA_ARGS__)                        \
    DEFINE(int32_t, decode_int4, DECODE, (wire, out, count), __VA_ARGS__)                        \
    DEFINE(int32_t, encode_bfloat16, ENCODE, (values, wire, lost, count), __VA_ARGS__)           \
    DEFINE(int32_t, encode_int8, ENCODE, (values, wire, lost, count), __VA_ARGS__)               \
    DEFINE(int32_t, encode_int4, ENCODE, (values, wire, lost, count), __VA_ARGS__)               \
    DEFINE(int32_t, too_large, SIZE, (values, count, largest), __VA_ARGS__)

FOR_EACH_LEVEL(ALL)
