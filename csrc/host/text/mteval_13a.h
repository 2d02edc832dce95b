// The tokenization of mteval-v13a, which BLEU scores are reported with.
#pragma once

#include <string>
#include <string_view>

namespace fastbudget::text {

// Returns the line with a space around every token that sacrebleu's "13a" cuts off.
std::string mteval_13a(std::string_view line);

}  // namespace fastbudget::text
