// Porter's stemmer with NLTK's extensions. Source: M. F. Porter, "An algorithm for suffix stripping", Program 14
// (1980), 130-137; the extensions as in nltk.stem.porter, whose stems rouge-score uses.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "fastbudget/text.h"

namespace fastbudget {
namespace {

using std::string;
using std::string_view;

bool ends_with(string_view word, string_view suffix) {
  return word.size() >= suffix.size() && word.substr(word.size() - suffix.size()) == suffix;
}

string_view without(string_view word, std::size_t letters) { return word.substr(0, word.size() - letters); }

// A y is a consonant at the beginning and after a vowel.
bool is_consonant(string_view word, std::size_t i) {
  const auto is_vowel = [](char c) { return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u'; };
  bool flip = false;
  for (; i > 0 && word[i] == 'y'; --i) flip = !flip;
  return !is_vowel(word[i]) != flip;
}

// How many times a run of vowels is followed by a consonant.
int measure(string_view stem) {
  int count = 0;
  bool before = true;
  for (std::size_t i = 0; i < stem.size(); ++i) {
    const char c = stem[i];
    const bool vowel = c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u' || (c == 'y' && i > 0 && before);
    if (!vowel && !before) ++count;
    before = !vowel;
  }
  return count;
}

bool has_vowel(string_view stem) {
  for (std::size_t i = 0; i < stem.size(); ++i) {
    if (!is_consonant(stem, i)) return true;
  }
  return false;
}

bool ends_double_consonant(string_view word) {
  const std::size_t n = word.size();
  return n >= 2 && word[n - 1] == word[n - 2] && is_consonant(word, n - 1);
}

bool ends_consonant_vowel_consonant(string_view word) {
  const std::size_t n = word.size();
  if (n == 2) return !is_consonant(word, 0) && is_consonant(word, 1);
  return n >= 3 && is_consonant(word, n - 3) && !is_consonant(word, n - 2) && is_consonant(word, n - 1) &&
         word[n - 1] != 'w' && word[n - 1] != 'x' && word[n - 1] != 'y';
}

void replace_end(string* word, std::size_t letters, string_view by) {
  word->resize(word->size() - letters);
  word->append(by);
}

struct Rule {
  string_view suffix, replacement;
};

// The first rule whose suffix fits decides; it applies if the stem before the suffix measures more than `above`.
void apply_first(string* word, std::initializer_list<Rule> rules, int above) {
  for (const Rule& rule : rules) {
    if (!ends_with(*word, rule.suffix)) continue;
    if (measure(without(*word, rule.suffix.size())) > above) replace_end(word, rule.suffix.size(), rule.replacement);
    return;
  }
}

void remove_plural(string* word) {
  if (ends_with(*word, "ies")) {
    replace_end(word, 3, word->size() == 4 ? "ie" : "i");
  } else if (ends_with(*word, "sses")) {
    replace_end(word, 2, "");
  } else if (ends_with(*word, "s") && !ends_with(*word, "ss")) {
    replace_end(word, 1, "");
  }
}

void remove_past_and_progressive(string* word) {
  if (ends_with(*word, "ied")) return replace_end(word, 3, word->size() == 4 ? "ie" : "i");
  if (ends_with(*word, "eed")) {
    if (measure(without(*word, 3)) > 0) replace_end(word, 1, "");
    return;
  }
  const std::size_t letters = ends_with(*word, "ed") ? 2 : ends_with(*word, "ing") ? 3 : 0;
  if (letters == 0 || !has_vowel(without(*word, letters))) return;
  replace_end(word, letters, "");
  if (ends_with(*word, "at") || ends_with(*word, "bl") || ends_with(*word, "iz")) {
    word->push_back('e');
  } else if (ends_double_consonant(*word)) {
    const char last = word->back();
    if (last != 'l' && last != 's' && last != 'z') word->pop_back();
  } else if (measure(*word) == 1 && ends_consonant_vowel_consonant(*word)) {
    word->push_back('e');
  }
}

void turn_y_to_i(string* word) {
  if (!ends_with(*word, "y")) return;
  const string_view stem = without(*word, 1);
  if (stem.size() > 1 && is_consonant(stem, stem.size() - 1)) word->back() = 'i';
}

void shorten_double_suffix(string* word) {
  if (ends_with(*word, "alli") && measure(without(*word, 4)) > 0) replace_end(word, 2, "");
  // "logi" measures its stem with the l.
  constexpr string_view kBeforeLogi[] = {"ational", "tional",  "enci",    "anci",    "izer",  "bli",    "alli",
                                         "entli",   "eli",     "ousli",   "ization", "ation", "ator",   "alism",
                                         "iveness", "fulness", "ousness", "aliti",   "iviti", "biliti", "fulli"};
  if (ends_with(*word, "logi") && std::none_of(std::begin(kBeforeLogi), std::end(kBeforeLogi),
                                               [&](string_view suffix) { return ends_with(*word, suffix); })) {
    if (measure(without(*word, 3)) > 0) replace_end(word, 1, "");
    return;
  }
  apply_first(word, {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"}, {"izer", "ize"},
                     {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"}, {"eli", "e"},     {"ousli", "ous"},
                     {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},  {"alism", "al"},  {"iveness", "ive"},
                     {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},  {"iviti", "ive"}, {"biliti", "ble"},
                     {"fulli", "ful"}},
              0);
}

void shorten_suffix(string* word) {
  apply_first(
      word,
      {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""}}, 0);
}

void remove_suffix(string* word) {
  for (const string_view suffix : {"al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"}) {
    if (ends_with(*word, suffix)) return apply_first(word, {{suffix, ""}}, 1);
  }
  if (ends_with(*word, "ion")) {
    const string_view stem = without(*word, 3);
    if (measure(stem) > 1 && (stem.back() == 's' || stem.back() == 't')) replace_end(word, 3, "");
    return;
  }
  apply_first(word, {{"ou", ""}, {"ism", ""}, {"ate", ""}, {"iti", ""}, {"ous", ""}, {"ive", ""}, {"ize", ""}}, 1);
}

void tidy_up(string* word) {
  if (ends_with(*word, "e")) {
    const string_view stem = without(*word, 1);
    const int size = measure(stem);
    if (size > 1 || (size == 1 && !ends_consonant_vowel_consonant(stem))) word->pop_back();
  }
  if (ends_with(*word, "ll") && measure(without(*word, 1)) > 1) word->pop_back();
}

}  // namespace

void porter_stem(string* word) {
  constexpr std::pair<string_view, string_view> kIrregular[] = {
      {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
      {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
      {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
      {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"}};
  for (const auto& [form, stem] : kIrregular) {
    if (*word == form) {
      *word = stem;
      return;
    }
  }
  if (word->size() <= 2) return;
  remove_plural(word);
  remove_past_and_progressive(word);
  turn_y_to_i(word);
  shorten_double_suffix(word);
  shorten_suffix(word);
  remove_suffix(word);
  tidy_up(word);
}

}  // namespace fastbudget
