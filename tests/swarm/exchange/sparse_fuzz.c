/* Decodes mutated encodings and random bytes: nothing is read or written beyond what is given, nothing that is
 * decoded has another form, and adding accepts what decoding does.
 *
 *     cc -O2 -o /tmp/sparse_fuzz tests/swarm/exchange/sparse_fuzz.c -lm && /tmp/sparse_fuzz 10000000 1
 *     cc -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -o /tmp/sparse_fuzz ...
 *
 * Every buffer ends at a page that may not be touched, so a step too far ends the program without a sanitizer, too.
 * Prints how many inputs were decoded and how many refused. */

#define _DEFAULT_SOURCE
#define SOURCE_DIGEST "fuzz"
#include "../../../atom/swarm/exchange/sparse_kernels.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NUMBERS_MOST = 2 * CHUNK, BYTES_MOST = 4096 };

static uint64_t state;

static uint32_t drawn(uint32_t below) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 32) % below;
}

/* So much memory, before a page that may not be touched. */
static void *guarded(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    uint8_t *found = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED || mprotect(found + whole, page, PROT_NONE)) exit(2);
    return found + whole;
}

static void fail(const char *what, uint64_t input) {
    fprintf(stderr, "input %llu: %s\n", (unsigned long long)input, what);
    exit(1);
}

static int64_t mutated(uint8_t *bytes, int64_t size) {
    for (uint32_t times = 1 + drawn(4); times > 0 && size > 0; times--) switch (drawn(6)) {
            case 0: bytes[drawn((uint32_t)size)] ^= (uint8_t)(1u << drawn(8)); break;
            case 1: bytes[drawn((uint32_t)size)] = (uint8_t)drawn(256); break;
            case 2: bytes[drawn(6) % size] = (uint8_t)drawn(256); break;
            case 3: size = drawn((uint32_t)size + 1); break;
            case 4: bytes[size] = (uint8_t)drawn(3); size++; break;
            case 5: memmove(bytes, bytes + 1, (size_t)--size); break;
        }
    return size;
}

/* Numbers of several kinds: few, equal, of all magnitudes. */
static void fill(float *values, int64_t count) {
    const uint32_t one_of = 1u << drawn(12), kind = drawn(3);
    for (int64_t i = 0; i < count; i++) {
        const float value = kind == 0 ? 1.0f + (float)drawn(3) : float_of(0x0c000000u + drawn(0x72000000u));
        values[i] = drawn(one_of) ? 0.0f : drawn(2) ? value : -value;
    }
}

int main(int argc, char **argv) {
    const uint64_t inputs = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    state = 0x9e3779b97f4a7c15u ^ (argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    float *numbers_end = guarded(NUMBERS_MOST * sizeof(float)), *sums_end = guarded(NUMBERS_MOST * sizeof(float));
    uint8_t *bytes_end = guarded(BYTES_MOST);
    static float values[NUMBERS_MOST];
    static uint8_t valid[BYTES_MOST], again[BYTES_MOST];
    const int32_t levels = atom_highest_level() + 1;
    int64_t encoded = 0, count = 0, decoded = 0;
    int32_t level = 0;
    for (uint64_t input = 0; input < inputs; input++) {
        if (input % 64 == 0) {
            level = (int32_t)drawn((uint32_t)levels);
            count = drawn(2) ? 16 * (1 + drawn(20)) : CHUNK * drawn(2) + 16 * (1 + drawn(32));
            fill(values, count);
            encoded = atom_encode(values, valid, NULL, count, level);
            if (encoded < 0 || encoded > BYTES_MOST - 8) fail("cannot be encoded", input);
        }
        int64_t size = encoded;
        memcpy(again, valid, (size_t)encoded);
        if (drawn(8)) {
            size = mutated(again, size);
        } else {
            size = drawn(400);
            for (int64_t i = 0; i < size; i++) again[i] = (uint8_t)(drawn(2) ? drawn(256) : drawn(2));
        }
        uint8_t *bytes = memcpy(bytes_end - size, again, (size_t)size);
        float *numbers = numbers_end - count, *sums = sums_end - count;
        const int32_t wrong = atom_decode(bytes, size, numbers, count, level);
        memset(sums, 0, (size_t)count * sizeof *sums);
        const int32_t not_added = atom_add(bytes, size, sums, 1.0f, sums, count, level);
        if (wrong != not_added) fail("adding and decoding do not agree", input);
        if (wrong) continue;
        decoded++;
        for (int64_t i = 0; i < count; i++)
            if (sums[i] != numbers[i]) fail("was added as other numbers", input);
        if (atom_encode(numbers, again, NULL, count, level) != size || memcmp(again, bytes, (size_t)size))
            fail("has another form", input);
    }
    printf("%llu inputs: %lld decoded, %lld refused\n", (unsigned long long)inputs, (long long)decoded,
           (long long)inputs - (long long)decoded);
    return 0;
}
