#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "mteval_13a.h"
#include "utf8.h"
#include "vocabulary.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kFewestTexts = 256;  // in a piece

constexpr bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Which bytes belong to words.
constexpr std::array<bool, 256> word_bytes(bool other_scripts_too) {
  std::array<bool, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = byte < 0x80 ? is_alphanumeric(static_cast<char>(byte)) : other_scripts_too;
  }
  return table;
}
constexpr auto kAsciiWords = word_bytes(false), kAllWords = word_bytes(true);

template <typename Emit>
void split_runs(std::string_view text, const std::array<bool, 256>& in_word, Emit emit) {
  const auto inside = [&](std::size_t i) { return in_word[static_cast<unsigned char>(text[i])]; };
  for (std::size_t begin = 0; begin < text.size();) {
    while (begin < text.size() && !inside(begin)) ++begin;
    std::size_t end = begin;
    while (end < text.size() && inside(end)) ++end;
    if (end > begin) emit(text.substr(begin, end - begin));
    begin = end;
  }
}

template <typename Emit>
void split_at_whitespace(std::string_view text, Emit emit) {
  std::size_t begin = 0, i = 0;
  while (i < text.size()) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first > ' ' && first < 0x80) {
      ++i;
      continue;
    }
    const std::size_t space = text::whitespace_length(text.substr(i));
    if (space && i > begin) emit(text.substr(begin, i - begin));
    i += space ? space : text::length_of(first);
    if (space) begin = i;
  }
  if (text.size() > begin) emit(text.substr(begin));
}

template <typename Emit>
void split(std::string_view text, TokenRule rule, Emit emit) {
  switch (rule) {
    case TokenRule::kAlphanumeric: return split_runs(text, kAsciiWords, emit);
    case TokenRule::kWords: return split_runs(text, kAllWords, emit);
    case TokenRule::kMteval13a: return split_at_whitespace(text::mteval_13a(text), emit);
    default: return split_at_whitespace(text, emit);
  }
}

std::int32_t code_point(const char* bytes, std::size_t length) {
  std::int32_t code = static_cast<unsigned char>(bytes[0]);
  if (length > 1) code &= 0xFF >> (length + 1);
  for (std::size_t k = 1; k < length; ++k) code = code << 6 | (bytes[k] & 0x3F);
  return code;
}

// Calls visit(bytes, length) for each code point.
template <typename Visit>
void visit_code_points(std::string_view text, bool whitespace_too, Visit visit) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = std::min(text::length_of(text[i]), text.size() - i);
    if (whitespace_too || !text::whitespace_length(text.substr(i))) visit(text.data() + i, length);
    i += length;
  }
}

// Code points are ids of their own: no vocabulary is gathered.
void split_into_characters(const std::vector<std::string_view>& texts, bool whitespace_too, int threads,
                           TokenIds* tokens) {
  const auto n = static_cast<std::int64_t>(texts.size());
  tokens->vocabulary = 0x110000;
  tokens->offsets.assign(n + 1, 0);
  parallel_for(n, kFewestTexts, threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) {
      std::int64_t count = 0;
      if (whitespace_too) {  // all bytes but those that continue a code point
        for (const char c : texts[d]) count += (c & 0xC0) != 0x80;
      } else {
        visit_code_points(texts[d], false, [&](const char*, std::size_t) { ++count; });
      }
      tokens->offsets[d + 1] = count;
    }
  });
  std::partial_sum(tokens->offsets.begin(), tokens->offsets.end(), tokens->offsets.begin());
  tokens->ids.resize(tokens->offsets[n]);
  parallel_for(n, kFewestTexts, threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) {
      std::int32_t* out = tokens->ids.data() + tokens->offsets[d];
      const std::string_view text = texts[d];
      if (tokens->offsets[d + 1] - tokens->offsets[d] == static_cast<std::int64_t>(text.size())) {  // ASCII
        std::copy(text.begin(), text.end(), out);
      } else {
        visit_code_points(text, whitespace_too,
                          [&](const char* bytes, std::size_t length) { *out++ = code_point(bytes, length); });
      }
    }
  });
}

// Texts that one thread reads, with a vocabulary of their own so that none is locked; its ids are renamed afterwards,
// in the order of pieces.
struct TextPiece {
  text::Vocabulary vocabulary;
  std::vector<std::int32_t> ids;
};

std::string stemmed(std::string_view token, int stem_above) {
  std::string stem(token);
  const bool plain = std::all_of(stem.begin(), stem.end(), is_alphanumeric);
  if (plain && static_cast<int>(stem.size()) > stem_above) porter_stem(&stem);
  return stem;
}

}  // namespace

void tokenize(const std::vector<std::string_view>& texts, TokenRule rule, bool lowercase, bool stem, int stem_above,
              int threads, TokenIds* tokens) {
  if (rule == TokenRule::kCharacters || rule == TokenRule::kInk) {
    return split_into_characters(texts, rule == TokenRule::kCharacters, threads, tokens);
  }
  const auto n = static_cast<std::int64_t>(texts.size());
  // Few pieces, as each gathers a vocabulary. Ids follow the order of first use, wherever the pieces end.
  const std::int64_t per_piece = std::max(kFewestTexts, n / (2 * max_slots(n, kFewestTexts, threads)) + 1);
  std::vector<TextPiece> pieces((n + per_piece - 1) / per_piece);
  tokens->offsets.assign(n + 1, 0);
  parallel_for(n, per_piece, threads, [&](int, std::int64_t begin, std::int64_t end) {
    TextPiece& piece = pieces[begin / per_piece];
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

  text::Vocabulary all, stems;
  std::vector<std::int32_t> stem_of;  // per id in `all`, so that every word is stemmed once
  std::vector<std::vector<std::int32_t>> renamed(pieces.size());
  std::vector<std::int64_t> begins(pieces.size() + 1, 0);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const text::Vocabulary& own = pieces[p].vocabulary;
    for (std::int32_t id = 0; id < own.size(); ++id) {
      const std::int32_t name = all.id_of(own[id]);
      if (stem && name == static_cast<std::int32_t>(stem_of.size())) {
        stem_of.push_back(stems.id_of(stemmed(own[id], stem_above)));
      }
      renamed[p].push_back(stem ? stem_of[name] : name);
    }
    begins[p + 1] = begins[p] + static_cast<std::int64_t>(pieces[p].ids.size());
  }
  tokens->vocabulary = stem ? stems.size() : all.size();
  tokens->ids.resize(begins.back());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    for (std::size_t i = 0; i < pieces[p].ids.size(); ++i) {
      tokens->ids[begins[p] + i] = renamed[p][pieces[p].ids[i]];
    }
  }
  for (std::int64_t d = 0; d < n; ++d) tokens->offsets[d + 1] += begins[d / per_piece];
}

}  // namespace fastbudget
