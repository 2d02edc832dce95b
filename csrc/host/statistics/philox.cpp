#include "philox.h"

#include <array>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FASTBUDGET_PHILOX_AVX 1
#endif

namespace fastbudget {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
constexpr int kRounds = 10;

struct Keys {
  std::uint32_t key0, key1;
};

using Counter = std::array<std::uint32_t, 4>;

void plain(Keys keys, Counter counter, std::uint32_t* numbers) {
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    Counter c = counter;
    c[0] += static_cast<std::uint32_t>(lane);
    Keys k = keys;
    for (int round = 0; round < kRounds; ++round, k = {k.key0 + kStep0, k.key1 + kStep1}) {
      const std::uint64_t a = std::uint64_t{kMultiplier0} * c[0], b = std::uint64_t{kMultiplier1} * c[2];
      c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k.key0, static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k.key1, static_cast<std::uint32_t>(a)};
    }
    for (int word = 0; word < 4; ++word) numbers[word * kPhiloxLanes + lane] = c[word];
  }
}

#ifdef FASTBUDGET_PHILOX_AVX
// A word lies in the low half of a 64-bit lane; what gathers in the high half is never read: products are of low
// halves.
__attribute__((target("avx2"))) void with_avx2(Keys keys, Counter counter, std::uint32_t* numbers) {
  constexpr int kVectors = kPhiloxLanes / 4;
  const __m256i multiplier0 = _mm256_set1_epi64x(kMultiplier0), multiplier1 = _mm256_set1_epi64x(kMultiplier1);
  __m256i c[4][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    c[0][v] =
        _mm256_add_epi64(_mm256_set1_epi64x(counter[0]), _mm256_setr_epi64x(4 * v, 4 * v + 1, 4 * v + 2, 4 * v + 3));
    for (int word = 1; word < 4; ++word) c[word][v] = _mm256_set1_epi64x(counter[word]);
  }
  for (int round = 0; round < kRounds; ++round, keys = {keys.key0 + kStep0, keys.key1 + kStep1}) {
    const __m256i key0 = _mm256_set1_epi64x(keys.key0), key1 = _mm256_set1_epi64x(keys.key1);
    for (int v = 0; v < kVectors; ++v) {
      const __m256i a = _mm256_mul_epu32(multiplier0, c[0][v]), b = _mm256_mul_epu32(multiplier1, c[2][v]);
      c[0][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c[1][v]), key0);
      c[2][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c[3][v]), key1);
      c[1][v] = b;
      c[3][v] = a;
    }
  }
  const __m256i low_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  for (int word = 0; word < 4; ++word) {
    for (int v = 0; v < kVectors; ++v) {
      const __m256i packed = _mm256_permutevar8x32_epi32(c[word][v], low_halves);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + word * kPhiloxLanes + 4 * v),
                       _mm256_castsi256_si128(packed));
    }
  }
}

// The same with eight 64-bit lanes in a register.
__attribute__((target("avx512f"))) void with_avx512(Keys keys, Counter counter, std::uint32_t* numbers) {
  constexpr int kVectors = kPhiloxLanes / 8;
  const __m512i multiplier0 = _mm512_set1_epi64(kMultiplier0), multiplier1 = _mm512_set1_epi64(kMultiplier1);
  __m512i c[4][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    c[0][v] = _mm512_add_epi64(
        _mm512_set1_epi64(counter[0]),
        _mm512_setr_epi64(8 * v, 8 * v + 1, 8 * v + 2, 8 * v + 3, 8 * v + 4, 8 * v + 5, 8 * v + 6, 8 * v + 7));
    for (int word = 1; word < 4; ++word) c[word][v] = _mm512_set1_epi64(counter[word]);
  }
  constexpr int kXorOfThree = 0x96;
  __m512i key0 = _mm512_set1_epi32(keys.key0), key1 = _mm512_set1_epi32(keys.key1);
  const __m512i step0 = _mm512_set1_epi32(kStep0), step1 = _mm512_set1_epi32(kStep1);
  for (int round = 0; round < kRounds; ++round) {
    for (int v = 0; v < kVectors; ++v) {
      const __m512i a = _mm512_mul_epu32(multiplier0, c[0][v]), b = _mm512_mul_epu32(multiplier1, c[2][v]);
      c[0][v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c[1][v], key0, kXorOfThree);
      c[2][v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c[3][v], key1, kXorOfThree);
      c[1][v] = b;
      c[3][v] = a;
    }
    key0 = _mm512_add_epi32(key0, step0);
    key1 = _mm512_add_epi32(key1, step1);
  }
  for (int word = 0; word < 4; ++word) {
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + word * kPhiloxLanes + 8 * v),
                          _mm512_cvtepi64_epi32(c[word][v]));
    }
  }
}

using Generator = void (*)(Keys keys, Counter counter, std::uint32_t* numbers);

const Generator generator = []() -> Generator {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return with_avx512;
  if (__builtin_cpu_supports("avx2")) return with_avx2;
  return plain;
}();
#else
constexpr auto generator = plain;
#endif

}  // namespace

void philox_numbers(std::uint64_t seed, Purpose purpose, std::uint64_t stream, std::uint32_t first,
                    std::uint32_t* numbers) {
  const Keys keys{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const Counter counter{first, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32),
                        static_cast<std::uint32_t>(purpose)};
  generator(keys, counter, numbers);
}

}  // namespace fastbudget
