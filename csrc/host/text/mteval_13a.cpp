#include "mteval_13a.h"

#include <array>

#include "utf8.h"

namespace fastbudget::text {
namespace {

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (std::size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size())) {
    text->replace(at, from.size(), to);
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_stop(char c) { return c == '.' || c == ','; }

// ASCII punctuation but the apostrophe, comma, dash and full stop, and the space.
constexpr bool is_symbol(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

constexpr std::array<bool, 256> kSymbols = [] {
  std::array<bool, 256> table{};
  for (int c = 0; c < 0x80; ++c) table[c] = is_symbol(static_cast<char>(c));
  return table;
}();

// str.rstrip()
std::string_view without_trailing_space(std::string_view line) {
  while (!line.empty()) {
    std::size_t last = line.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(line[last]) & 0xC0) == 0x80) --last;
    if (whitespace_length(line.substr(last)) != line.size() - last) break;
    line.remove_suffix(line.size() - last);
  }
  return line;
}

}  // namespace

// One loop for each of the script's substitutions: none may see the result of a later one, nor overlap its own.
std::string mteval_13a(std::string_view given) {
  std::string line(without_trailing_space(given));
  replace_all(&line, "<skipped>", "");
  replace_all(&line, "-\n", "");
  replace_all(&line, "\n", " ");
  if (line.find('&') != std::string::npos) {
    replace_all(&line, "&quot;", "\"");
    replace_all(&line, "&amp;", "&");
    replace_all(&line, "&lt;", "<");
    replace_all(&line, "&gt;", ">");
  }
  line = " " + line + " ";

  // Each substitution at most triples the line; letters are written through a pointer, which is several times faster
  // than appending them.
  std::string other(3 * line.size(), ' ');
  char* out = other.data();
  const auto finish = [&] {  // the output becomes the next substitution's input
    other.resize(out - other.data());
    line.swap(other);
    other.assign(3 * line.size(), ' ');
    out = other.data();
  };
  const auto spaced = [&](char c) { *out++ = ' ', *out++ = c, *out++ = ' '; };

  for (const char c : line) {  // symbols
    if (kSymbols[static_cast<unsigned char>(c)]) {
      spaced(c);
    } else {
      *out++ = c;
    }
  }
  finish();
  if (line.find_first_of(".,") != std::string::npos) {
    for (std::size_t i = 0; i < line.size(); ++i) {  // stops that no digit precedes
      *out++ = line[i];
      if (!is_digit(line[i]) && i + 1 < line.size() && is_stop(line[i + 1])) spaced(line[++i]);
    }
    finish();
    for (std::size_t i = 0; i < line.size(); ++i) {  // stops that no digit follows
      if (is_stop(line[i]) && i + 1 < line.size() && !is_digit(line[i + 1])) {
        spaced(line[i]);
        *out++ = line[++i];
      } else {
        *out++ = line[i];
      }
    }
    finish();
  }
  if (line.find('-') != std::string::npos) {
    for (std::size_t i = 0; i < line.size(); ++i) {  // dashes after a digit
      *out++ = line[i];
      if (is_digit(line[i]) && i + 1 < line.size() && line[i + 1] == '-') spaced(line[++i]);
    }
    finish();
  }
  return line;
}

}  // namespace fastbudget::text
