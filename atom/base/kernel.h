/* What the rooms' kernels share: numbers as their bits, the instruction sets that each function is
 * compiled for, and what Python asks of every library. Included once by each. */
#ifndef ATOM_KERNEL_H
#define ATOM_KERNEL_H

#ifdef __CUDACC_RTC__ /* for a GPU, by a compiler that has no headers */
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define KERNEL extern "C" __global__ void
#define INLINE static __device__ __forceinline__
INLINE uint32_t bits_of(float value) { return __float_as_uint(value); }
INLINE float float_of(uint32_t bits) { return __uint_as_float(bits); }
#else
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Besides the compiler's own target. Contraction is off, so that `fma` is used where the source
 * says fmaf and nowhere else. */
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#if defined(__clang__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#else
#define AVX512                                                                                   \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
#endif
#endif

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
#endif

INLINE float from_bfloat16(uint16_t value) { return float_of((uint32_t)value << 16); }

/* To nearest, ties to even; NaN stays NaN. */
INLINE uint16_t to_bfloat16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

#ifndef __CUDACC_RTC__
/* The function of that name for a level: 0 plain instructions, 1 AVX2, 2 AVX-512. */
#if defined(__x86_64__)
#define CHOOSE(level, NAME)                                                                      \
    ((level) == 2 ? NAME##_avx512 : (level) == 1 ? NAME##_avx2 : NAME##_plain)
#else
#define CHOOSE(level, NAME) ((void)(level), NAME##_plain)
#endif

/* Defines for each level, and for Python, what ALL(DEFINE, ...) lists: DEFINE(type of the result, name of an inline
 * function, "(" and what it is given, that handed on). */
#define ONE_LEVEL(TYPE, NAME, GIVEN, HANDED_ON, SUFFIX, ATTRIBUTE)                               \
    ATTRIBUTE static TYPE NAME##_##SUFFIX GIVEN) { return NAME HANDED_ON; }
#define FOR_PYTHON(TYPE, NAME, GIVEN, HANDED_ON, ...)                                            \
    TYPE atom_##NAME GIVEN, int32_t level) { return CHOOSE(level, NAME) HANDED_ON; }
#if defined(__x86_64__)
#define FOR_EACH_LEVEL(ALL)                                                                      \
    ALL(ONE_LEVEL, plain, ) ALL(ONE_LEVEL, avx2, AVX2) ALL(ONE_LEVEL, avx512, AVX512) ALL(FOR_PYTHON, )
#else
#define FOR_EACH_LEVEL(ALL) ALL(ONE_LEVEL, plain, ) ALL(FOR_PYTHON, )
#endif

/* Of the sources that the library was made from. */
const char *atom_source_digest(void) { return SOURCE_DIGEST; }

/* What this processor has. */
int32_t atom_highest_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? 2 : avx2;
#else
    return 0;
#endif
}
#endif

#endif
