// Included before llama.cpp's own sources where the processor has AMX. GCC 12's _tile_loadconfig tells the compiler of 8
// of the 64 bytes that it reads, so that the others are never written, and the program dies at its first product.
#pragma once
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)))
