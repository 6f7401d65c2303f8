/* Sparse chunks: of every 4,096 numbers the largest few, each as a sign, one of two levels, and its place.
 *
 * See Sparse in atom/swarm/exchange/sparse.py for the format. Same bits on every machine: what is compared are
 * sizes as integers, and the only sums, those of the levels, run over LANES lanes in the order written.
 *
 * Decoding trusts nothing: a record is copied to memory of our own that no malformed one can leave, and every
 * place is checked before it is written to.
 *
 * Plain C without Python: loaded with ctypes, which releases the interpreter's lock.
 */

#include <stddef.h>

#include "../../base/kernel.h"

enum { CHUNK = 4096, KEPT = 256, LOW = 3, GROUPS = 16, LANES = 8, HEADER = 6 };
enum { NUMBERS = 0, NOT_FINITE = 1, NOT_CANONICAL = 2 };
enum { MOST_RECORD = 320, AHEAD = 8 }; /* bytes: above any record's, and how far a look ahead reads */

#define INFINITE 0x7f800000u
#define SMALLEST 0x0d800000u /* 2^-100: what is smaller counts as 0 */
#define HALF_OF(bits) ((uint16_t)((bits) >> 15)) /* of a size, the 16 leading bits */
#define REFINEMENTS 4

INLINE uint32_t size_of(float value) { return bits_of(value) & 0x7fffffffu; }
INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- Which are kept */

/* Numbers that are kept, or may be, in the order of their places. */
struct some {
    uint32_t sizes[CHUNK];
    uint16_t places[CHUNK];
    int32_t count;
};

/* The largest of each of 4 * KEPT groups, as halves; and the largest of all, as a size. */
INLINE uint32_t group_maxima(const float *restrict values, uint16_t *restrict maxima) {
    const int32_t rows = CHUNK / (4 * KEPT);
    uint32_t largest[GROUPS] = {0};
    for (int32_t block = 0; block < 4 * KEPT / GROUPS; block++) {
        uint32_t found[GROUPS] = {0};
        for (int32_t row = 0; row < rows; row++, values += GROUPS)
            for (int32_t lane = 0; lane < GROUPS; lane++)
                found[lane] = larger(found[lane], size_of(values[lane]));
        for (int32_t lane = 0; lane < GROUPS; lane++) {
            maxima[GROUPS * block + lane] = HALF_OF(found[lane]);
            largest[lane] = larger(largest[lane], found[lane]);
        }
    }
    for (int32_t lane = 1; lane < GROUPS; lane++) largest[0] = larger(largest[0], largest[lane]);
    return largest[0];
}

/* The largest half that at least KEPT of the maxima reach: at least so many numbers reach it as well. */
INLINE uint16_t half_reached(const uint16_t *restrict maxima) {
    uint16_t found = 0;
    for (int32_t bit = 15; bit >= 0; bit--) {
        const uint16_t tried = (uint16_t)(found | 1u << bit);
        uint16_t count = 0;
        for (int32_t i = 0; i < 4 * KEPT; i++) count = (uint16_t)(count + (maxima[i] >= tried));
        if (count >= KEPT) found = tried;
    }
    return found;
}

/* The largest size that at least KEPT of these reach, of more than so many. */
INLINE uint32_t size_reached(const struct some *all, uint32_t at_least, uint32_t at_most) {
    while (at_least < at_most) {
        const uint32_t tried = at_least + (at_most - at_least + 1) / 2;
        int32_t count = 0;
        for (int32_t i = 0; i < all->count; i++) count += all->sizes[i] >= tried;
        if (count >= KEPT)
            at_least = tried;
        else
            at_most = tried - 1;
    }
    return at_least;
}

/* All of the chunk that reach a size. */
INLINE void reaching(const float *restrict values, uint32_t size, struct some *found) {
    int32_t count = 0;
    for (int32_t start = 0; start < CHUNK; start += 64) {
        uint8_t reached[64];
        uint64_t mask = 0;
        for (int32_t i = 0; i < 64; i++) reached[i] = size_of(values[start + i]) >= size;
        for (int32_t i = 0; i < 8; i++) { /* a bit of each of eight bytes */
            uint64_t bytes;
            memcpy(&bytes, reached + 8 * i, sizeof bytes);
            mask |= (bytes * 0x0102040810204080u >> 56) << (8 * i);
        }
        for (; mask; mask &= mask - 1, count++) {
            const int32_t place = start + __builtin_ctzll(mask);
            found->places[count] = (uint16_t)place;
            found->sizes[count] = size_of(values[place]);
        }
    }
    found->count = count;
}

/* The KEPT largest of a chunk that are not as good as 0; of equal ones the first. Returns the largest size. */
INLINE uint32_t choose(const float *restrict values, struct some *found) {
    uint16_t maxima[4 * KEPT];
    const uint32_t largest = group_maxima(values, maxima);
    const uint32_t bound = larger((uint32_t)half_reached(maxima) << 15, SMALLEST);
    reaching(values, bound, found);
    if (found->count <= KEPT) return largest;
    const uint32_t least_kept = size_reached(found, bound, largest);
    int32_t ties = KEPT, count = 0;
    for (int32_t i = 0; i < found->count; i++) ties -= found->sizes[i] > least_kept;
    for (int32_t i = 0; i < found->count; i++) {
        const int32_t tie = found->sizes[i] == least_kept && ties > 0;
        found->sizes[count] = found->sizes[i];
        found->places[count] = found->places[i];
        count += tie || found->sizes[i] > least_kept;
        ties -= tie;
    }
    found->count = count;
    return largest;
}

/* ---- Their two levels */

struct levels {
    uint16_t low, high; /* bfloat16 */
    float border;       /* what is above it has the high one */
};

/* Sums of LANES lanes, which vectors hold, whatever the processor's: their order is the same. */
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t flags __attribute__((vector_size(4 * LANES)));

INLINE float mean_of(const lanes *sums, int32_t count) {
    float half[LANES / 2], total = 0;
    for (int32_t lane = 0; lane < LANES / 2; lane++) half[lane] = (*sums)[lane] + (*sums)[lane + LANES / 2];
    for (int32_t lane = 0; lane < LANES / 2; lane++) total += half[lane];
    return total / (float)count;
}

/* The means of the sizes on both sides of a border; both that of all if there are none on one side. `sizes` end
 * with zeros to whole lanes. */
INLINE void means_beside(const float *sizes, int32_t count, float border, float *low, float *high) {
    lanes above = {0}, below = {0};
    flags many = {0};
    int32_t highs = 0;
    for (int32_t i = 0; i < count; i += LANES) {
        lanes size;
        flags bits, is_above;
        memcpy(&size, sizes + i, sizeof size);
        memcpy(&bits, sizes + i, sizeof bits);
        is_above = size > border; /* -1 or 0 */
        above += (lanes)(bits & is_above);
        below += (lanes)(bits & ~is_above);
        many -= is_above;
    }
    for (int32_t lane = 0; lane < LANES; lane++) highs += many[lane];
    if (highs == 0 || highs == count) {
        *low = *high = mean_of(highs ? &above : &below, count);
        return;
    }
    *low = mean_of(&below, count - highs);
    *high = mean_of(&above, highs);
}

/* Lloyd's: begins at the mean of all, and moves the border between the means of both sides. All is reckoned in
 * 1/KEPT, which is exact and overflows nowhere. */
INLINE struct levels levels_of(const struct some *kept) {
    float sizes[KEPT + LANES], low, high;
    for (int32_t i = 0; i < kept->count; i++) sizes[i] = float_of(kept->sizes[i]) * (1.0f / KEPT);
    for (int32_t i = 0; i < LANES; i++) sizes[kept->count + i] = 0.0f;
    means_beside(sizes, kept->count, float_of(INFINITE), &low, &high);
    struct levels found = {0, 0, low};
    means_beside(sizes, kept->count, found.border, &low, &high);
    for (int32_t time = 0; time < REFINEMENTS; time++) {
        found.border = low + (high - low) * 0.5f;
        means_beside(sizes, kept->count, found.border, &low, &high);
    }
    found.low = to_bfloat16(low * KEPT);
    found.high = to_bfloat16(high * KEPT);
    found.border = found.low == found.high ? float_of(INFINITE) : found.border * KEPT;
    return found;
}

/* ---- To the wire */

struct writer {
    uint8_t *at;
    uint64_t held;
    int32_t bits;
};

INLINE void put(struct writer *to, uint64_t value, int32_t count) { /* at most 32 bits */
    to->held |= value << to->bits;
    to->bits += count;
    if (to->bits < 32) return;
    memcpy(to->at, &to->held, 4);
    to->at += 4;
    to->held >>= 32;
    to->bits -= 32;
}

INLINE void put_all(struct writer *to, const uint64_t *words, int32_t count) {
    for (int32_t i = 0; i < count; i += 32) {
        const int32_t bits = least(count - i, 32);
        put(to, words[i / 64] >> (i % 64) & (((uint64_t)1 << bits) - 1), bits);
    }
}

/* One record; `lost` has the values already, or is NULL. Returns where the next one begins. */
INLINE uint8_t *write_record(const float *values, const struct some *kept, struct levels levels,
                             uint8_t *wire, float *lost) {
    const float numbers[2] = {from_bfloat16(levels.low), from_bfloat16(levels.high)};
    uint64_t signs[KEPT / 64] = {0}, highs[KEPT / 64] = {0}, unary[MOST_RECORD / 8] = {0};
    uint16_t lows[KEPT], header[3] = {(uint16_t)kept->count, levels.low, levels.high};
    int32_t next = 0, at = -1;
    for (int32_t i = 0; i < kept->count; i++) {
        const int32_t place = kept->places[i], gap = place - next;
        const uint64_t sign = bits_of(values[place]) >> 31, high = float_of(kept->sizes[i]) > levels.border;
        signs[i / 64] |= sign << (i % 64);
        highs[i / 64] |= high << (i % 64);
        lows[i] = (uint16_t)(gap & ((1 << LOW) - 1));
        at += 1 + (gap >> LOW);
        unary[at / 64] |= (uint64_t)1 << (at % 64);
        next = place + 1;
        if (lost) lost[place] = values[place] - (sign ? -numbers[high] : numbers[high]);
    }
    memcpy(wire, header, HEADER);
    struct writer to = {wire + HEADER, 0, 0};
    put_all(&to, signs, kept->count);
    put_all(&to, highs, kept->count);
    for (int32_t i = 0; i < kept->count; i++) put(&to, lows[i], LOW);
    put_all(&to, unary, at + 1);
    for (; to.bits > 0; to.bits -= 8, to.held >>= 8) *to.at++ = (uint8_t)to.held;
    return to.at;
}

INLINE int64_t in_chunk(int64_t start, int64_t all) { return all - start < CHUNK ? all - start : CHUNK; }

INLINE int64_t encode(const float *all_values, uint8_t *wire, float *all_lost, int64_t all) {
    const uint8_t *begin = wire;
    struct some found;
    float padded[CHUNK];
    for (int64_t start = 0; start < all; start += CHUNK) {
        const size_t size = (size_t)in_chunk(start, all) * sizeof *all_values;
        const float *values = all_values + start;
        float *lost = all_lost ? all_lost + start : NULL;
        if (lost) memcpy(lost, values, size);
        if (size < sizeof padded) {
            memset(padded, 0, sizeof padded);
            values = memcpy(padded, values, size);
        }
        if (choose(values, &found) >= INFINITE) return -1;
        struct levels levels = {0, 0, 0.0f};
        if (found.count) levels = levels_of(&found);
        if ((uint32_t)levels.high << 16 >= INFINITE) return -1;
        if (found.count) {
            wire = write_record(values, &found, levels, wire, lost);
        } else {
            memset(wire, 0, 2);
            wire += 2;
        }
    }
    return wire - begin;
}

/* ---- From the wire */

/* What one record says. */
struct record {
    float numbers[KEPT];
    uint16_t places[KEPT];
    int32_t count;
};

/* From this bit on, 57 bits or more. */
INLINE uint64_t bits_from(const uint8_t *raw, int32_t bit) {
    uint64_t word;
    memcpy(&word, raw + bit / 8, sizeof word);
    return word >> (bit % 8);
}

INLINE int32_t wrong_levels(uint16_t low, uint16_t high) {
    const uint32_t finite = INFINITE >> 16, sign = 0x8000u;
    if ((low & ~sign) >= finite || (high & ~sign) >= finite) return NOT_FINITE;
    return low < SMALLEST >> 16 || high >= sign || low > high ? NOT_CANONICAL : NUMBERS;
}

/* The places, from the bit where the low bits begin. Returns the first bit after them, or -1. */
INLINE int32_t read_places(const uint8_t *raw, int32_t bit, int32_t end, int64_t numbers, struct record *to) {
    const uint64_t ahead = ((uint64_t)1 << 56) - 1, mask = ((uint64_t)1 << LOW) - 1;
    int32_t at = bit + LOW * to->count, next = 0;
    for (int32_t i = 0; i < to->count; i++, bit += LOW) {
        uint64_t word = bits_from(raw, at) & ahead;
        int32_t zeros = 0;
        for (; word == 0 && at + zeros < end; word = bits_from(raw, at + zeros) & ahead) zeros += 56;
        if (at + zeros >= end) return -1;
        zeros += __builtin_ctzll(word);
        at += zeros + 1;
        next += zeros << LOW | (int32_t)(bits_from(raw, bit) & mask);
        if (at > end || next >= numbers) return -1;
        to->places[i] = (uint16_t)next++;
    }
    return at;
}

/* One record, of so many numbers, in at most `left` bytes; `used` of them. */
INLINE int32_t read_record(const uint8_t *wire, int64_t left, int64_t numbers, struct record *to,
                           int64_t *used) {
    uint8_t raw[MOST_RECORD + AHEAD];
    const int32_t size = left < MOST_RECORD ? (int32_t)left : MOST_RECORD;
    uint16_t header[3] = {0};
    memcpy(header, wire, (size_t)least(size, HEADER));
    to->count = header[0];
    *used = 2;
    if (size < 2 || to->count > KEPT) return NOT_CANONICAL;
    if (to->count == 0) return NUMBERS;
    if (size < HEADER + (to->count * (LOW + 3) + 7) / 8) return NOT_CANONICAL;
    const int32_t wrong = wrong_levels(header[1], header[2]);
    if (wrong) return wrong;
    memcpy(raw, wire, (size_t)size);
    memset(raw + size, 0, AHEAD);

    const int32_t signs = 8 * HEADER, highs = signs + to->count;
    const int32_t end = read_places(raw, highs + to->count, 8 * size, numbers, to);
    if (end < 0 || bits_from(raw, end) & (((uint64_t)1 << (-end & 7)) - 1)) return NOT_CANONICAL;
    int32_t high_ones = 0;
    for (int32_t i = 0; i < to->count; i++) {
        const uint32_t high = bits_from(raw, highs + i) & 1, sign = bits_from(raw, signs + i) & 1;
        to->numbers[i] = float_of((uint32_t)header[1 + high] << 16 | sign << 31);
        high_ones += (int32_t)high;
    }
    *used = (end + 7) / 8;
    const int32_t one_level = header[1] == header[2];
    const int32_t canonical = one_level ? high_ones == 0 : high_ones > 0 && high_ones < to->count;
    return canonical ? NUMBERS : NOT_CANONICAL;
}

INLINE int32_t decode(const uint8_t *wire, int64_t bytes, float *all_out, int64_t all) {
    struct record record;
    for (int64_t start = 0; start < all; start += CHUNK) {
        const int64_t count = in_chunk(start, all);
        float *out = all_out + start;
        int64_t used;
        const int32_t wrong = read_record(wire, bytes, count, &record, &used);
        if (wrong) return wrong;
        memset(out, 0, (size_t)count * sizeof *out);
        for (int32_t i = 0; i < record.count; i++) out[record.places[i]] = record.numbers[i];
        wire += used;
        bytes -= used;
    }
    return bytes ? NOT_CANONICAL : NUMBERS;
}

/* out = own * factor. Says the largest size. */
INLINE uint32_t scaled(const float *own, float factor, float *out, int64_t count) {
    uint32_t worst = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = own[i] * factor;
        worst = larger(worst, size_of(out[i]));
    }
    return worst;
}

/* out = (what arrived + own) * factor; own may be out, and then only what arrived is touched if factor is 1. */
INLINE int32_t add(const uint8_t *wire, int64_t bytes, const float *all_own, float factor, float *all_out,
                   int64_t all) {
    struct record record;
    uint32_t worst = 0;
    for (int64_t start = 0; start < all; start += CHUNK) {
        const int64_t count = in_chunk(start, all);
        const float *own = all_own + start;
        float *out = all_out + start, sums[KEPT];
        int64_t used;
        const int32_t wrong = read_record(wire, bytes, count, &record, &used);
        if (wrong) return wrong;
        for (int32_t i = 0; i < record.count; i++) {
            sums[i] = (record.numbers[i] + own[record.places[i]]) * factor;
            worst = larger(worst, size_of(sums[i]));
        }
        if (own != out || factor != 1.0f) worst = larger(worst, scaled(own, factor, out, count));
        for (int32_t i = 0; i < record.count; i++) out[record.places[i]] = sums[i];
        wire += used;
        bytes -= used;
    }
    if (bytes) return NOT_CANONICAL;
    return worst >= INFINITE ? NOT_FINITE : NUMBERS;
}

/* ---- What Python calls. `level`: 0 plain instructions, 1 AVX2, 2 AVX-512; at most the processor's. Encoding
 * returns the bytes written, or -1: not finite. */

#define ENCODE (const float *values, uint8_t *wire, float *lost, int64_t all
#define DECODE (const uint8_t *wire, int64_t bytes, float *out, int64_t all
#define ADD (const uint8_t *wire, int64_t bytes, const float *own, float factor, float *out, int64_t all

#define ALL(DEFINE, ...)                                                                         \
    DEFINE(int64_t, encode, ENCODE, (values, wire, lost, all), __VA_ARGS__)                      \
    DEFINE(int32_t, decode, DECODE, (wire, bytes, out, all), __VA_ARGS__)                        \
    DEFINE(int32_t, add, ADD, (wire, bytes, own, factor, out, all), __VA_ARGS__)

FOR_EACH_LEVEL(ALL)
