/* AdamW on one element. The host's loops and the GPU's kernel include this one source, so both give
 * the same bits. Every operation is one IEEE 754 operation in round-to-nearest, in the order
 * written.
 */
#ifndef ATOM_ADAMW_ELEMENT_H
#define ATOM_ADAMW_ELEMENT_H

#include "../base/kernel.h"

enum gradient_format { GRADIENT_FLOAT32, GRADIENT_BFLOAT16 };
enum master_format { MASTER_FLOAT32, MASTER_SPLIT };
enum moment_format { MOMENT_FLOAT32, MOMENT_BFLOAT16, MOMENT_8_BITS };
enum working_format { WORKING_NONE, WORKING_BFLOAT16, WORKING_FLOAT16 };

/* Arguments of the step on consecutive elements of one parameter, mirrored by `AdamWArguments` in
 * atom/swap/host_kernels.py. Pointers refer to the first element in each arena. */
struct adamw {
    void *master;      /* float32, or the low halves, 16 bits */
    void *working;     /* null, the rounded copy, or the high halves in bfloat16 */
    void *exp_avg;     /* float32, bfloat16 or 8 bits */
    void *exp_avg_sq;  /* float32, bfloat16 or 8 bits */
    uint8_t *exp_avg_exponent, *exp_avg_sq_exponent; /* one per block of 8-bit moments */
    const void *gradient;
    uint64_t noise_key; /* of the step, for stochastic rounding of moments */
    int32_t gradient_format, master_format, moment_format, working_format;
    float coefficient;  /* factor of the gradient */
    float beta2, one_minus_beta1, one_minus_beta2;
    float root_of_correction2; /* sqrt(1 - beta2^step) */
    float epsilon;
    float minus_step_size; /* -rate / (1 - beta1^step) */
};

/* Rounds to the nearest float16, ties to even, also to subnormal numbers. NaN stays NaN. */
INLINE uint16_t to_float16(float value) {
    uint32_t bits = bits_of(value), sign = bits & 0x80000000u, size = bits ^ sign;
    uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    /* Adding a half aligns a subnormal result with the last bit, and rounds it. */
    uint32_t subnormal = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    uint32_t result = size < 0x38800000u ? subnormal : normal;
    result = size >= 0x47800000u ? 0x7c00u : result;
    result = size > 0x7f800000u ? 0x7e00u : result;
    return (uint16_t)(result | (sign >> 16));
}

/* Halves of a split float32: the high half rounded to nearest, ties away from zero, and the 16 bits
 * that were cut off, read as a signed number. high * 2^16 + low are the bits of the float32. */
INLINE uint16_t high_half(float value) { return (uint16_t)((bits_of(value) + 0x8000u) >> 16); }
INLINE uint16_t low_half(float value) { return (uint16_t)bits_of(value); }
INLINE float joined(uint16_t high, uint16_t low) {
    return float_of(((uint32_t)high << 16) + (uint32_t)(int32_t)(int16_t)low);
}

/* Rounds to bfloat16, up with the probability of the fraction that is cut off. `noise` has 16
 * uniform bits. */
INLINE uint16_t to_bfloat16_at_random(float value, uint32_t noise) {
    return (uint16_t)((bits_of(value) + noise) >> 16);
}

INLINE uint64_t mixed64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns 32 random bits for one element, a function of the two keys and the element's number. */
INLINE uint32_t noise_of(uint32_t element, uint32_t key, uint32_t other_key) {
    uint32_t x = element ^ key;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = ((x ^ (x >> 15)) + other_key) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Terms that all elements share whose numbers have the same upper 32 bits. */
struct adamw_terms {
    float coefficient, beta2, c1, c2, root, epsilon, minus_step_size, decay;
    float weight;
    uint32_t near; /* all ones if the mean moves less than half way, else zero */
    uint32_t low_key, high_key;
};

/* Returns the terms; `number` is the number of any of the elements. A mean that moves half way or
 * more is computed from the gradient, not from the old mean. A bit mask selects the base, because a
 * condition would keep compilers from using vectors. */
INLINE struct adamw_terms adamw_terms_of(const struct adamw *step, uint64_t number, float decay) {
    const float c1 = step->one_minus_beta1;
    const uint64_t key = mixed64(step->noise_key ^ mixed64(number >> 32));
    struct adamw_terms terms = {
        step->coefficient, step->beta2, c1, step->one_minus_beta2, step->root_of_correction2,
        step->epsilon, step->minus_step_size, decay,
        c1 < 0.5f ? c1 : c1 - 1.0f, c1 < 0.5f ? 0xffffffffu : 0u,
        (uint32_t)key, (uint32_t)(key >> 32),
    };
    return terms;
}

/* Updates element i of each arena; `number` is the lower 32 bits of its number. Callers pass the
 * four formats as constants to get loops without branches. */
INLINE void adamw_element(const struct adamw_terms terms, int64_t i, uint32_t number,
                          int gradient_format, int master_format, int moment_format,
                          int working_format, void *master, void *working, void *exp_avg,
                          void *exp_avg_sq, const void *gradients) {
    float given = gradient_format == GRADIENT_FLOAT32
                      ? ((const float *)gradients)[i]
                      : from_bfloat16(((const uint16_t *)gradients)[i]);
    float gradient = given * terms.coefficient;
    float value = master_format == MASTER_FLOAT32
                      ? ((float *)master)[i]
                      : joined(((uint16_t *)working)[i], ((uint16_t *)master)[i]);
    float m = moment_format == MOMENT_FLOAT32 ? ((float *)exp_avg)[i]
                                              : from_bfloat16(((uint16_t *)exp_avg)[i]);
    float v = moment_format == MOMENT_FLOAT32 ? ((float *)exp_avg_sq)[i]
                                              : from_bfloat16(((uint16_t *)exp_avg_sq)[i]);

    float base = float_of((bits_of(m) & terms.near) | (bits_of(gradient) & ~terms.near));
    m = fmaf(terms.weight, gradient - m, base);
    v = fmaf(terms.c2 * gradient, gradient, v * terms.beta2);
    float denominator = sqrtf(v) / terms.root + terms.epsilon;
    value = value * terms.decay + (terms.minus_step_size * m) / denominator;

    if (master_format == MASTER_FLOAT32) {
        ((float *)master)[i] = value;
        if (working_format == WORKING_BFLOAT16) ((uint16_t *)working)[i] = to_bfloat16(value);
        if (working_format == WORKING_FLOAT16) ((uint16_t *)working)[i] = to_float16(value);
    } else {
        ((uint16_t *)working)[i] = high_half(value);
        ((uint16_t *)master)[i] = low_half(value);
    }
    if (moment_format == MOMENT_FLOAT32) {
        ((float *)exp_avg)[i] = m;
        ((float *)exp_avg_sq)[i] = v;
    } else {
        uint32_t noise = noise_of(number, terms.low_key, terms.high_key);
        ((uint16_t *)exp_avg)[i] = to_bfloat16_at_random(m, noise & 0xffffu);
        ((uint16_t *)exp_avg_sq)[i] = to_bfloat16_at_random(v, noise >> 16);
    }
}

#endif
