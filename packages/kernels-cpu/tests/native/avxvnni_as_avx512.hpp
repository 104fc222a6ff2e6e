// Included before anything else, this gives files compiled for AVX-VNNI the same instruction in the encoding of AVX-512:
// the same bits on processors that have only that one.
#pragma once

#include <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 dpbusd_of_avx512

[[maybe_unused]] static inline __m256i dpbusd_of_avx512(__m256i sum, __m256i codes, __m256i inputs) {
  asm("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(inputs));
  return sum;
}
