/* Loops over host arenas, each in one pass over memory: the AdamW step, sums of gradients, and the
 * sum of squares for clipping.
 *
 * The bits are the same on every machine. Every operation below is one IEEE 754 operation in round-
 * to-nearest, in the order written: the file is compiled without contraction and without fast
 * mathematics, and where a fused multiply-add is meant it says fmaf, which rounds once with or
 * without an instruction for it. Elements do not depend on each other, or are added in an order
 * that is part of the definition. So vector width, chunking, alignment and threads do not change
 * the bits.
 *
 * Plain C without Python: loaded with ctypes, which releases the interpreter's lock.
 */

#include "adamw_element.h"

/* Moments in 8 bits. A block of 256 elements shares an exponent: the exponent of its largest
 * number, rounded up, biased as in a float32. Each element stores 3 bits of its mantissa, and the
 * distance of its exponent from the block's. Squares have no sign and 5 bits of exponent. Only zero
 * has code 0: a square that is too small for the block gets the smallest code above. Means have a
 * sign, 4 bits of exponent, and evenly spaced numbers below these, down to zero. Rounding is
 * stochastic. */
enum { BLOCK = 256, CUT_BITS = 20, LEAST_EXPONENT = 32 };

/* Raises exponents that would give subnormal numbers. A block without any update has exponent 0. */
INLINE uint32_t at_least(uint32_t exponent) {
    return exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent;
}

INLINE uint32_t exponent_over(uint32_t largest_bits) {
    return at_least((largest_bits + ((1u << CUT_BITS) - 1)) >> 23);
}

INLINE float square_of(uint32_t code, uint32_t exponent) {
    uint32_t bits = (code + 8 * (exponent - 31)) << CUT_BITS;
    return float_of(code == 0 ? 0 : bits);
}

INLINE uint32_t code_of_square(float value, uint32_t exponent, uint32_t noise) {
    int32_t code = (int32_t)((bits_of(value) + noise) >> CUT_BITS) - (int32_t)(8 * (exponent - 31));
    code = code < 1 ? 1 : code;
    return bits_of(value) == 0 ? 0 : (uint32_t)code;
}

INLINE float mean_of(uint32_t code, uint32_t exponent) {
    uint32_t size = code & 0x7fu, least = 8 * (exponent - 14);
    float even = float_of((size + least) << CUT_BITS) - float_of(least << CUT_BITS);
    uint32_t bits = size < 8 ? bits_of(even) : (size + least - 8) << CUT_BITS;
    return float_of(bits | (code & 0x80u) << 24);
}

INLINE uint32_t code_of_mean(float value, uint32_t exponent, uint32_t noise) {
    uint32_t bits = bits_of(value), size = bits & 0x7fffffffu, least = 8 * (exponent - 14);
    uint32_t even = bits_of(float_of(size) + float_of(least << CUT_BITS));
    uint32_t is_even = size < least << CUT_BITS;
    uint32_t code = (((is_even ? even : size) + noise) >> CUT_BITS) - least + (is_even ? 0 : 8);
    return code | (bits >> 24 & 0x80u);
}

/* Updates elements [start, stop), whose numbers share their upper 32 bits. `first` is the number of
 * element 0. The four formats are constants where this is inlined: each combination becomes a loop
 * without branches. */
INLINE void adamw_loop(const struct adamw *step, int64_t start, int64_t stop, uint64_t first,
                       float decay, int gradient_format, int master_format, int moment_format,
                       int working_format, void *restrict master, void *restrict working,
                       void *restrict exp_avg, void *restrict exp_avg_sq,
                       const void *restrict gradients) {
    const struct adamw_terms terms = adamw_terms_of(step, first + (uint64_t)start, decay);
    for (int64_t i = start; i < stop; i++)
        adamw_element(terms, i, (uint32_t)first + (uint32_t)i, gradient_format, master_format,
                      moment_format, working_format, master, working, exp_avg, exp_avg_sq,
                      gradients);
}

/* Updates elements [start, stop) with moments in 8 bits, at most one block, on float32 copies of
 * the moments. The upper 32 bits of the first element's number decide the noise of the whole block.
 */
INLINE void adamw_block(const struct adamw *step, int64_t start, int64_t stop, uint64_t first,
                        float decay, int gradient_format, int master_format, int working_format,
                        void *restrict master, void *restrict working, uint8_t *restrict exp_avg,
                        uint8_t *restrict exp_avg_sq, const void *restrict gradients) {
    float means[BLOCK], squares[BLOCK];
    uint8_t *of_means = step->exp_avg_exponent + start / BLOCK;
    uint8_t *of_squares = step->exp_avg_sq_exponent + start / BLOCK;
    const uint64_t key = mixed64(step->noise_key ^ mixed64((first + (uint64_t)start) >> 32));
    const uint32_t low_key = (uint32_t)key, high_key = (uint32_t)(key >> 32);
    uint32_t mean_exponent = at_least(*of_means), square_exponent = at_least(*of_squares);

    for (int64_t i = start; i < stop; i++) {
        means[i - start] = mean_of(exp_avg[i], mean_exponent);
        squares[i - start] = square_of(exp_avg_sq[i], square_exponent);
    }
    adamw_loop(step, 0, stop - start, 0, decay, gradient_format, master_format, MOMENT_FLOAT32,
               working_format, (char *)master + start * (master_format == MASTER_FLOAT32 ? 4 : 2),
               (uint16_t *)working + start, means, squares,
               (const char *)gradients + start * (gradient_format == GRADIENT_FLOAT32 ? 4 : 2));
    uint32_t largest_mean = 0, largest_square = 0;
    for (int64_t i = 0; i < stop - start; i++) {
        uint32_t mean = bits_of(means[i]) & 0x7fffffffu, square = bits_of(squares[i]);
        largest_mean = mean > largest_mean ? mean : largest_mean;
        largest_square = square > largest_square ? square : largest_square;
    }
    *of_means = (uint8_t)(mean_exponent = exponent_over(largest_mean));
    *of_squares = (uint8_t)(square_exponent = exponent_over(largest_square));
    for (int64_t i = start; i < stop; i++) {
        uint32_t noise = noise_of((uint32_t)first + (uint32_t)i, low_key, high_key);
        uint32_t other = (noise >> 16) << 4;
        exp_avg[i] = (uint8_t)code_of_mean(means[i - start], mean_exponent, (noise & 0xffffu) << 4);
        exp_avg_sq[i] = (uint8_t)code_of_square(squares[i - start], square_exponent, other);
    }
}

#define ADAMW_CASE(G, MASTER, MOMENT, WORKING)                                                   \
    if (s->gradient_format == G && s->master_format == MASTER && s->moment_format == MOMENT &&   \
        s->working_format == WORKING) {                                                          \
        adamw_loop(s, start, stop, first, decay, G, MASTER, MOMENT, WORKING, s->master, s->working,     \
                   s->exp_avg, s->exp_avg_sq, s->gradient);                                      \
        return 1;                                                                                \
    }

#define BLOCKS_CASE(G, MASTER, WORKING)                                                          \
    if (s->gradient_format == G && s->master_format == MASTER && s->working_format == WORKING) { \
        for (int64_t at = 0; at < count; at += BLOCK) {                                          \
            int64_t end = at + BLOCK < count ? at + BLOCK : count;                               \
            adamw_block(s, at, end, first, decay, G, MASTER, WORKING, s->master, s->working,     \
                        s->exp_avg, s->exp_avg_sq, s->gradient);                                 \
        }                                                                                        \
        return 1;                                                                                \
    }

#define BLOCKS_CASES(G)                                                                          \
    BLOCKS_CASE(G, MASTER_FLOAT32, WORKING_NONE)                                                 \
    BLOCKS_CASE(G, MASTER_FLOAT32, WORKING_BFLOAT16)                                             \
    BLOCKS_CASE(G, MASTER_FLOAT32, WORKING_FLOAT16)                                              \
    BLOCKS_CASE(G, MASTER_SPLIT, WORKING_NONE)

/* Defines the step with moments in 8 bits; blocks count from the first element. */
#define DEFINE_ADAMW_BLOCKS(NAME, ATTRIBUTE)                                                     \
    ATTRIBUTE static int NAME(const struct adamw *s, int64_t count, uint64_t first,              \
                              float decay) {                                                     \
        BLOCKS_CASES(GRADIENT_FLOAT32)                                                           \
        BLOCKS_CASES(GRADIENT_BFLOAT16)                                                          \
        return 0;                                                                                \
    }

#define ADAMW_CASES(G)                                                                           \
    ADAMW_CASE(G, MASTER_FLOAT32, MOMENT_FLOAT32, WORKING_NONE)                                  \
    ADAMW_CASE(G, MASTER_FLOAT32, MOMENT_FLOAT32, WORKING_BFLOAT16)                              \
    ADAMW_CASE(G, MASTER_FLOAT32, MOMENT_FLOAT32, WORKING_FLOAT16)                               \
    ADAMW_CASE(G, MASTER_SPLIT, MOMENT_FLOAT32, WORKING_NONE)                                    \
    ADAMW_CASE(G, MASTER_SPLIT, MOMENT_BFLOAT16, WORKING_NONE)

#define DEFINE_ADAMW(NAME, ATTRIBUTE)                                                            \
    ATTRIBUTE static int NAME(const struct adamw *s, int64_t start, int64_t stop,                \
                              uint64_t first, float decay) {                                     \
        ADAMW_CASES(GRADIENT_FLOAT32)                                                            \
        ADAMW_CASES(GRADIENT_BFLOAT16)                                                           \
        return 0;                                                                                \
    }

INLINE void add_float32_loop(float *restrict sum, const float *restrict addend, int64_t count) {
    for (int64_t i = 0; i < count; i++) sum[i] += addend[i];
}

INLINE void add_bfloat16_loop(float *restrict sum, const uint16_t *restrict addend,
                              int64_t count) {
    for (int64_t i = 0; i < count; i++) sum[i] += from_bfloat16(addend[i]);
}

/* Adds elements [first, first + count) of an arena in bfloat16, whose numbers share their upper 32
 * bits: the sum is computed in float32 and rounded stochastically. */
INLINE void add_rounded_loop(uint16_t *restrict sum, const uint16_t *restrict addend,
                             int64_t count, uint64_t first, uint64_t noise_key) {
    const uint64_t key = mixed64(noise_key ^ mixed64(first >> 32));
    const uint32_t low_key = (uint32_t)key, high_key = (uint32_t)(key >> 32);
    for (int64_t i = 0; i < count; i++) {
        uint32_t noise = noise_of((uint32_t)first + (uint32_t)i, low_key, high_key);
        float total = from_bfloat16(sum[i]) + from_bfloat16(addend[i]);
        sum[i] = to_bfloat16_at_random(total, noise & 0xffffu);
    }
}

#define DEFINE_ADD_ROUNDED(NAME, ATTRIBUTE)                                                      \
    ATTRIBUTE static void NAME(uint16_t *sum, const uint16_t *addend, int64_t count,             \
                               uint64_t first, uint64_t noise_key) {                             \
        add_rounded_loop(sum, addend, count, first, noise_key);                                  \
    }

#define DEFINE_ADD(NAME, LOOP, TYPE, ATTRIBUTE)                                                  \
    ATTRIBUTE static void NAME(float *sum, const TYPE *addend, int64_t count) {                  \
        LOOP(sum, addend, count);                                                                \
    }

INLINE double wide(const void *x, int64_t i, int format) {
    return format == GRADIENT_FLOAT32 ? ((const float *)x)[i]
                                      : from_bfloat16(((const uint16_t *)x)[i]);
}

/* Returns the sum of squares in the order of additions that atom/optim/clipping.py defines. `lane`
 * is memory for `lanes` sums. Four rows at a time, so each sum is loaded and stored once for all
 * four. */
INLINE double sum_of_squares_loop(const void *restrict x, int format, int64_t count,
                                  double *restrict lane, int64_t lanes) {
    int64_t start = 0;
    for (int64_t l = 0; l < lanes; l++) lane[l] = 0.0;
    for (; start + 4 * lanes <= count; start += 4 * lanes) {
        for (int64_t l = 0; l < lanes; l++) {
            int64_t at = start + l;
            double a = wide(x, at, format), b = wide(x, at + lanes, format);
            double c = wide(x, at + 2 * lanes, format), d = wide(x, at + 3 * lanes, format);
            lane[l] = (((lane[l] + a * a) + b * b) + c * c) + d * d;
        }
    }
    for (; start < count; start += lanes) {
        int64_t here = count - start < lanes ? count - start : lanes;
        for (int64_t l = 0; l < here; l++) {
            double value = wide(x, start + l, format);
            lane[l] += value * value;
        }
    }
    for (int64_t half = lanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

#define DEFINE_SQUARES(NAME, FORMAT, ATTRIBUTE)                                                  \
    ATTRIBUTE static double NAME(const void *x, int64_t count, double *lane, int64_t lanes) {    \
        return sum_of_squares_loop(x, FORMAT, count, lane, lanes);                               \
    }

#define DEFINE_ALL(SUFFIX, ATTRIBUTE)                                                            \
    DEFINE_ADAMW(adamw_##SUFFIX, ATTRIBUTE)                                                      \
    DEFINE_ADAMW_BLOCKS(adamw_blocks_##SUFFIX, ATTRIBUTE)                                        \
    DEFINE_ADD(add_float32_##SUFFIX, add_float32_loop, float, ATTRIBUTE)                         \
    DEFINE_ADD(add_bfloat16_##SUFFIX, add_bfloat16_loop, uint16_t, ATTRIBUTE)                    \
    DEFINE_ADD_ROUNDED(add_rounded_##SUFFIX, ATTRIBUTE)                                          \
    DEFINE_SQUARES(squares_float32_##SUFFIX, GRADIENT_FLOAT32, ATTRIBUTE)                        \
    DEFINE_SQUARES(squares_bfloat16_##SUFFIX, GRADIENT_BFLOAT16, ATTRIBUTE)

DEFINE_ALL(plain, )
#if defined(__x86_64__)
DEFINE_ALL(avx2, AVX2)
DEFINE_ALL(avx512, AVX512)
#endif

/* ---- Functions for Python. `level`: 0 plain instructions, 1 AVX2, 2 AVX-512, as the processor
 * has. */

/* Updates `count` elements. `first` is the number of the first one; the numbers decide the noise.
 * The weights are multiplied by `decay` first. Returns 0 if the formats cannot be combined. */
int32_t atom_adamw(const struct adamw *step, int64_t count, uint64_t first, float decay,
                   int32_t level) {
    if (step->moment_format == MOMENT_8_BITS)
        return CHOOSE(level, adamw_blocks)(step, count, first, decay);
    for (int64_t start = 0; start < count;) {
        uint64_t number = first + (uint64_t)start, border = ((number >> 32) + 1) << 32;
        uint64_t left = (uint64_t)(count - start), near = border - number;
        int64_t stop = start + (int64_t)(near < left ? near : left);
        if (!CHOOSE(level, adamw)(step, start, stop, first, decay)) return 0;
        start = stop;
    }
    return 1;
}

void atom_add_float32(float *sum, const float *addend, int64_t count, int32_t level) {
    CHOOSE(level, add_float32)(sum, addend, count);
}

void atom_add_bfloat16(float *sum, const uint16_t *addend, int64_t count, int32_t level) {
    CHOOSE(level, add_bfloat16)(sum, addend, count);
}

/* `first` is the number of element 0; the numbers decide the noise. */
void atom_add_rounded(uint16_t *sum, const uint16_t *addend, int64_t count, uint64_t first,
                      uint64_t noise_key, int32_t level) {
    while (count > 0) {
        uint64_t border = ((first >> 32) + 1) << 32;
        int64_t here = border - first < (uint64_t)count ? (int64_t)(border - first) : count;
        CHOOSE(level, add_rounded)(sum, addend, here, first, noise_key);
        sum += here, addend += here, first += (uint64_t)here, count -= here;
    }
}

double atom_squares_float32(const void *x, int64_t count, double *lane, int64_t lanes,
                            int32_t level) {
    return CHOOSE(level, squares_float32)(x, count, lane, lanes);
}

double atom_squares_bfloat16(const void *x, int64_t count, double *lane, int64_t lanes,
                             int32_t level) {
    return CHOOSE(level, squares_bfloat16)(x, count, lane, lanes);
}
