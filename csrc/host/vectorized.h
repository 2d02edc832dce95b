// Functions compiled for several instruction sets.
#pragma once

// AVX-512 or AVX2 where the machine has it, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTBUDGET_VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FASTBUDGET_VECTORIZED
#endif
