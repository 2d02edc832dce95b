#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <utility>

#include "domains.h"
#include "fastbudget/text.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

using Ids = py::array_t<std::int32_t, py::array::c_style>;
using Offsets = py::array_t<std::int64_t, py::array::c_style>;

TokenRule rule_of(const std::string& name) {
  if (name == "whitespace") return TokenRule::kWhitespace;
  if (name == "characters") return TokenRule::kCharacters;
  if (name == "ink") return TokenRule::kInk;
  if (name == "alphanumeric") return TokenRule::kAlphanumeric;
  if (name == "words") return TokenRule::kWords;
  if (name == "13a") return TokenRule::kMteval13a;
  throw py::value_error("unknown token rule " + name);
}

// An array that owns the vector: nothing is copied.
template <typename T>
py::array_t<T> to_array(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  const py::capsule owner(owned, [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
  return py::array_t<T>(static_cast<py::ssize_t>(owned->size()), owned->data(), owner);
}

void check_offsets(const Offsets& offsets, std::int64_t limit, const char* name) {
  const std::int64_t* at = offsets.data();
  bool good = offsets.ndim() == 1 && offsets.size() >= 1 && at[0] >= 0 && at[offsets.size() - 1] <= limit;
  for (py::ssize_t i = 1; good && i < offsets.size(); ++i) good = at[i - 1] <= at[i];
  if (!good) throw py::value_error(std::string(name) + " must be ascending offsets into what they divide");
}

TokenPairs pairs_of(const Ids& ids, const Offsets& hypotheses, const Offsets& references, const Offsets& first) {
  check_offsets(hypotheses, ids.size(), "hypotheses");
  check_offsets(references, ids.size(), "references");
  check_offsets(first, references.size() - 1, "first_reference");
  if (first.size() != hypotheses.size())
    throw py::value_error("first_reference needs one entry per hypothesis, and one");
  return {ids.data(), hypotheses.data(), references.data(), first.data(), hypotheses.size() - 1};
}

void need_single_references(const TokenPairs& pairs) {
  for (std::int64_t d = 0; d <= pairs.n; ++d) {
    if (pairs.first_reference[d] != d) throw py::value_error("every hypothesis must have one reference");
  }
}

template <typename Measure>
py::array_t<std::int64_t> measured(const Ids& ids, const Offsets& hypotheses, const Offsets& references,
                                   const Offsets& first, int threads, Measure measure) {
  const TokenPairs pairs = pairs_of(ids, hypotheses, references, first);
  need_single_references(pairs);
  py::array_t<std::int64_t> values(pairs.n);
  std::int64_t* out = values.mutable_data();
  py::gil_scoped_release release;
  measure(pairs, threads, out);
  return values;
}

}  // namespace

void bind_text(py::module_& module) {
  module.def(
      "tokenize",
      [](const std::vector<py::str>& texts, const std::string& rule_name, bool lowercase, bool stem, int stem_above,
         int threads) {
        const TokenRule rule = rule_of(rule_name);
        std::vector<std::string_view> views;
        views.reserve(texts.size());
        for (const py::str& text : texts) {
          Py_ssize_t size = 0;
          const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);  // kept by the string itself
          if (!data) throw py::error_already_set();
          views.emplace_back(data, static_cast<std::size_t>(size));
        }
        TokenIds tokens;
        {
          py::gil_scoped_release release;
          tokenize(views, rule, lowercase, stem, stem_above, threads, &tokens);
        }
        return py::make_tuple(to_array(std::move(tokens.ids)), to_array(std::move(tokens.offsets)), tokens.vocabulary);
      },
      py::arg("texts"), py::arg("rule"), py::arg("lowercase") = false, py::arg("stem") = false,
      py::arg("stem_above") = 3, py::arg("threads") = 0,
      "Token ids int32, offsets int64 [n + 1] of each text's tokens, and the number of different tokens.");

  module.def(
      "porter_stem",
      [](std::string word) {
        porter_stem(&word);
        return word;
      },
      py::arg("word"), "The Porter stem of a word of a-z and 0-9, as NLTK gives it.");

  module.def(
      "ngram_overlap",
      [](const Ids& ids, const Offsets& hypotheses, const Offsets& references, const Offsets& first, int max_order,
         int threads) {
        const TokenPairs pairs = pairs_of(ids, hypotheses, references, first);
        if (max_order < 1) throw py::value_error("max_order must be at least 1");
        py::array_t<std::int64_t> counts({pairs.n, static_cast<std::int64_t>(max_order), std::int64_t{3}});
        std::int64_t* out = counts.mutable_data();
        py::gil_scoped_release release;
        ngram_overlap(pairs, max_order, threads, out);
        return counts;
      },
      py::arg("ids"), py::arg("hypotheses"), py::arg("references"), py::arg("first_reference"), py::arg("max_order"),
      py::arg("threads") = 0, "n-grams of each hypothesis, of its references, and in both; int64 [n, max_order, 3].");

  module.def(
      "common_subsequences",
      [](const Ids& ids, const Offsets& hypotheses, const Offsets& references, const Offsets& first, int threads) {
        return measured(ids, hypotheses, references, first, threads, common_subsequences);
      },
      py::arg("ids"), py::arg("hypotheses"), py::arg("references"), py::arg("first_reference"), py::arg("threads") = 0,
      "Length of the longest common subsequence of each pair, int64 [n].");

  module.def(
      "edit_distances",
      [](const Ids& ids, const Offsets& hypotheses, const Offsets& references, const Offsets& first, int threads) {
        return measured(ids, hypotheses, references, first, threads, edit_distances);
      },
      py::arg("ids"), py::arg("hypotheses"), py::arg("references"), py::arg("first_reference"), py::arg("threads") = 0,
      "Levenshtein distance of each pair in tokens, int64 [n].");

  module.def(
      "meteor_alignments",
      [](const Ids& ids, const Ids& stems, const Offsets& hypotheses, const Offsets& references, const Offsets& first,
         int threads) {
        const TokenPairs pairs = pairs_of(ids, hypotheses, references, first);
        need_single_references(pairs);
        if (stems.size() != ids.size()) throw py::value_error("stems must be as many as ids");
        py::array_t<std::int64_t> counts({pairs.n, std::int64_t{2}});
        std::int64_t* out = counts.mutable_data();
        const std::int32_t* stem = stems.data();
        py::gil_scoped_release release;
        meteor_alignments(pairs, stem, threads, out);
        return counts;
      },
      py::arg("ids"), py::arg("stems"), py::arg("hypotheses"), py::arg("references"), py::arg("first_reference"),
      py::arg("threads") = 0, "Matched tokens and chunks of each pair, int64 [n, 2].");

  module.def(
      "union_subsequences",
      [](const Ids& ids, const Offsets& hypotheses, const Offsets& references, const Offsets& hypothesis_sentences,
         const Offsets& reference_sentences, int threads) {
        check_offsets(hypotheses, ids.size(), "hypotheses");
        check_offsets(references, ids.size(), "references");
        check_offsets(hypothesis_sentences, hypotheses.size() - 1, "hypothesis_sentences");
        check_offsets(reference_sentences, references.size() - 1, "reference_sentences");
        if (hypothesis_sentences.size() != reference_sentences.size()) throw py::value_error("summaries must be pairs");
        const SummaryPairs pairs{ids.data(),
                                 hypotheses.data(),
                                 references.data(),
                                 hypothesis_sentences.data(),
                                 reference_sentences.data(),
                                 hypothesis_sentences.size() - 1};
        py::array_t<std::int64_t> hits(pairs.n);
        std::int64_t* out = hits.mutable_data();
        py::gil_scoped_release release;
        union_subsequences(pairs, threads, out);
        return hits;
      },
      py::arg("ids"), py::arg("hypotheses"), py::arg("references"), py::arg("hypothesis_sentences"),
      py::arg("reference_sentences"), py::arg("threads") = 0, "Union of common subsequences of summaries, int64 [n].");
}

}  // namespace fastbudget::bindings
