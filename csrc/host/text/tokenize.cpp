#include <algorithm>
#include <string>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "mteval_13a.h"
#include "utf8.h"
#include "vocabulary.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kTextsPerPiece = 256;

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

template <typename Emit>
void split_at_whitespace(std::string_view text, Emit emit) {
  std::size_t begin = 0, i = 0;
  while (i < text.size()) {
    const std::size_t space = text::whitespace_length(text.substr(i));
    if (space && i > begin) emit(text.substr(begin, i - begin));
    i += space ? space : text::length_of(text[i]);
    if (space) begin = i;
  }
  if (text.size() > begin) emit(text.substr(begin));
}

template <typename Emit>
void split_characters(std::string_view text, bool whitespace_too, Emit emit) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = std::min(text::length_of(text[i]), text.size() - i);
    if (whitespace_too || !text::whitespace_length(text.substr(i))) emit(text.substr(i, length));
    i += length;
  }
}

template <typename Emit>
void split_runs(std::string_view text, bool other_scripts_too, Emit emit) {
  const auto in_word = [&](char c) { return is_alphanumeric(c) || (other_scripts_too && (c & 0x80)); };
  for (std::size_t begin = 0; begin < text.size();) {
    while (begin < text.size() && !in_word(text[begin])) ++begin;
    std::size_t end = begin;
    while (end < text.size() && in_word(text[end])) ++end;
    if (end > begin) emit(text.substr(begin, end - begin));
    begin = end;
  }
}

template <typename Emit>
void split(std::string_view text, TokenRule rule, Emit emit) {
  switch (rule) {
    case TokenRule::kWhitespace: return split_at_whitespace(text, emit);
    case TokenRule::kCharacters: return split_characters(text, true, emit);
    case TokenRule::kInk: return split_characters(text, false, emit);
    case TokenRule::kAlphanumeric: return split_runs(text, false, emit);
    case TokenRule::kWords: return split_runs(text, true, emit);
    case TokenRule::kMteval13a: return split_at_whitespace(text::mteval_13a(text), emit);
  }
}

// One piece's own vocabulary, so that pieces need no lock; its ids are renamed afterwards, in the order of pieces.
struct Piece256 {
  text::Vocabulary vocabulary;
  std::vector<std::int32_t> ids;
};

std::string stemmed(const std::string& token, int stem_above) {
  std::string stem = token;
  const bool plain = std::all_of(stem.begin(), stem.end(), is_alphanumeric);
  if (plain && static_cast<int>(stem.size()) > stem_above) porter_stem(&stem);
  return stem;
}

}  // namespace

void tokenize(const std::vector<std::string_view>& texts, TokenRule rule, bool lowercase, bool stem, int stem_above,
              int threads, TokenIds* tokens) {
  const auto n = static_cast<std::int64_t>(texts.size());
  std::vector<Piece256> pieces((n + kTextsPerPiece - 1) / kTextsPerPiece);
  tokens->offsets.assign(n + 1, 0);
  parallel_for(n, kTextsPerPiece, threads, [&](int, std::int64_t begin, std::int64_t end) {
    Piece256& piece = pieces[begin / kTextsPerPiece];
    std::string lowered;
    for (std::int64_t d = begin; d < end; ++d) {
      std::string_view text = texts[d];
      if (lowercase) {
        lowered.assign(text);
        for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
        text = lowered;
      }
      split(text, rule, [&](std::string_view token) { piece.ids.push_back(piece.vocabulary.id_of(token)); });
      tokens->offsets[d + 1] = static_cast<std::int64_t>(piece.ids.size());  // within the piece, for now
    }
  });

  text::Vocabulary all;
  std::vector<std::vector<std::int32_t>> renamed(pieces.size());
  std::vector<std::int64_t> begins(pieces.size() + 1, 0);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    for (const std::string& token : pieces[p].vocabulary.tokens()) {
      renamed[p].push_back(all.id_of(stem ? stemmed(token, stem_above) : token));
    }
    begins[p + 1] = begins[p] + static_cast<std::int64_t>(pieces[p].ids.size());
  }
  tokens->vocabulary = static_cast<std::int64_t>(all.tokens().size());
  tokens->ids.resize(begins.back());
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, threads, [&](int, std::int64_t p, std::int64_t) {
    for (std::size_t i = 0; i < pieces[p].ids.size(); ++i) tokens->ids[begins[p] + i] = renamed[p][pieces[p].ids[i]];
  });
  for (std::int64_t d = 0; d < n; ++d) tokens->offsets[d + 1] += begins[d / kTextsPerPiece];
}

}  // namespace fastbudget
