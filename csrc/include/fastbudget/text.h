// Texts as token ids, and what generated text is compared by: n-grams, subsequences, edits, alignments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastbudget {

enum class TokenRule {
  kWhitespace,    // between Unicode whitespace, as Python's str.split()
  kCharacters,    // code points
  kInk,           // code points that aren't whitespace
  kAlphanumeric,  // runs of a-z and 0-9; all else separates (rouge-score)
  kWords,         // the same, and bytes of other scripts belong to words (texts come with their separators as spaces)
  kMteval13a,     // mteval-v13a, as sacrebleu's "13a"
};

// Documents of token ids: document d is ids[offsets[d] … offsets[d + 1]).
struct TokenIds {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> offsets;
  std::int64_t vocabulary = 0;
};

// Tokens of UTF-8 texts, equal ids for equal tokens across all texts. `lowercase` changes A-Z only; `stem` reduces
// tokens of a-z and 0-9 longer than `stem_above` to their Porter stems. Ids don't depend on the thread count.
void tokenize(const std::vector<std::string_view>& texts, TokenRule rule, bool lowercase, bool stem, int stem_above,
              int threads, TokenIds* tokens);

// The Porter stem of a word of a-z and 0-9, as NLTK's stemmer gives it; `word` is changed in place.
void porter_stem(std::string* word);

// Documents d of two sides in one vocabulary: hypothesis d has references [first_reference[d], first_reference[d+1]).
struct TokenPairs {
  const std::int32_t* ids;
  const std::int64_t* hypothesis_offsets;
  const std::int64_t* reference_offsets;
  const std::int64_t* first_reference;
  std::int64_t n;
};

// counts [n, max_order, 3]: n-grams of the hypothesis, of the reference, and in both, each as often as it occurs in
// both. Of several references every n-gram counts as often as where it is most frequent.
void ngram_overlap(const TokenPairs& pairs, int max_order, int threads, std::int64_t* counts);

// Per document, of single references: the length of the longest common subsequence, lengths [n].
void common_subsequences(const TokenPairs& pairs, int threads, std::int64_t* lengths);

// Sentences of summaries: summary d of the hypotheses has sentences [hypothesis_sentences[d], …[d + 1]) and likewise
// the references. hits [n]: tokens of the references' sentences in the union of their common subsequences with all
// sentences of the hypothesis, none counted twice (ROUGE-Lsum as rouge-score computes it).
struct SummaryPairs {
  const std::int32_t* ids;
  const std::int64_t* hypothesis_offsets;
  const std::int64_t* reference_offsets;
  const std::int64_t* hypothesis_sentences;
  const std::int64_t* reference_sentences;
  std::int64_t n;
};
void union_subsequences(const SummaryPairs& pairs, int threads, std::int64_t* hits);

// Per document, of single references: Levenshtein distance in tokens, distances [n].
void edit_distances(const TokenPairs& pairs, int threads, std::int64_t* distances);

// Per document, of single references: matched tokens and the chunks they lie in, counts [n, 2], by METEOR's greedy
// alignment as NLTK makes it: equal ids first, then equal stems (same shape as ids).
void meteor_alignments(const TokenPairs& pairs, const std::int32_t* stems, int threads, std::int64_t* counts);

}  // namespace fastbudget
