#include "mteval_13a.h"

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
bool is_symbol(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

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

  std::string spaced;
  spaced.reserve(2 * line.size());
  for (const char c : line) {  // symbols
    if (is_symbol(c)) spaced += ' ';
    spaced += c;
    if (is_symbol(c)) spaced += ' ';
  }
  line.clear();
  for (std::size_t i = 0; i < spaced.size(); ++i) {  // stops that no digit precedes
    line += spaced[i];
    if (!is_digit(spaced[i]) && i + 1 < spaced.size() && is_stop(spaced[i + 1])) {
      line += ' ';
      line += spaced[++i];
      line += ' ';
    }
  }
  spaced.clear();
  for (std::size_t i = 0; i < line.size(); ++i) {  // stops that no digit follows
    if (is_stop(line[i]) && i + 1 < line.size() && !is_digit(line[i + 1])) {
      spaced += ' ';
      spaced += line[i];
      spaced += ' ';
      spaced += line[++i];
    } else {
      spaced += line[i];
    }
  }
  line.clear();
  for (std::size_t i = 0; i < spaced.size(); ++i) {  // dashes after a digit
    line += spaced[i];
    if (is_digit(spaced[i]) && i + 1 < spaced.size() && spaced[i + 1] == '-') {
      line += " - ";
      ++i;
    }
  }
  return line;
}

}  // namespace fastbudget::text
