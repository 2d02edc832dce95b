// UTF-8 text, code point by code point. Texts come from Python, so they are well-formed.
#pragma once

#include <cstdint>
#include <string_view>

namespace fastbudget::text {

// Bytes of the code point that begins with this byte.
inline std::size_t length_of(unsigned char first) { return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4; }

// Bytes of the whitespace at the beginning of `text` (as Python's str.isspace), 0 if there is none.
inline std::size_t whitespace_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first <= 0x20) return (first == ' ' || (first >= 9 && first <= 13) || (first >= 0x1C && first <= 0x1F)) ? 1 : 0;
  if (first == 0xC2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;  // next line, no-break space
  if (first == 0xE1) return byte(1) == 0x9A && byte(2) == 0x80 ? 3 : 0;  // Ogham space mark
  if (first == 0xE2) {
    if (byte(1) == 0x80) {
      const unsigned last = byte(2);  // U+2000…200A, line and paragraph separators, narrow no-break space
      return (last >= 0x80 && last <= 0x8A) || last == 0xA8 || last == 0xA9 || last == 0xAF ? 3 : 0;
    }
    return byte(1) == 0x81 && byte(2) == 0x9F ? 3 : 0;  // medium mathematical space
  }
  if (first == 0xE3) return byte(1) == 0x80 && byte(2) == 0x80 ? 3 : 0;  // ideographic space
  return 0;
}

}  // namespace fastbudget::text
