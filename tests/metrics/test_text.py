"""Text metrics against the packages users trust, on random texts of all scripts."""

from __future__ import annotations

import random
import re
import warnings
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.metrics import _native

# fmt: off
WORDS = [
    "the", "cat", "cats", "sat", "sitting", "on", "a", "mat", "mats", "running", "relational", "Hopefully,", "it's",
    "U.S.", "3.14", "1,000", "e-mail", "state-of-the-art", "naïve", "Cristóbal", "İstanbul", "ΟΔΟΣ", "straße", "日本",
    "語", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "आज", "\u0936\u093f\u0902\u091c\u094b", "&amp;", "&quot;so&quot;",
    "(yes)", "[no]", "<skipped>", "-\n", "x\n\xa0y", "\u3000", "\u2028", "K", "\U0001d49c", "5-", "3-4", ".,", "!?",
    "...", "oil_tanks", "ﬁne", "١٢٣", "é", "e\u0301",
]
# fmt: on


def texts(**limits: int) -> st.SearchStrategy[str]:
    made = st.lists(st.sampled_from(WORDS), **limits).map(" ".join)
    return st.one_of(made, made, st.text(st.characters(codec="utf-8"), max_size=40))


def pairs(max_size: int = 6) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(texts(max_size=12), texts(max_size=12)), min_size=1, max_size=max_size)


@lru_cache
def rouge_scorer(stemmer: bool):
    module = pytest.importorskip("rouge_score.rouge_scorer", reason="compares with rouge-score")
    return module.RougeScorer(["rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum"], use_stemmer=stemmer)


@given(pairs(), st.booleans(), st.sampled_from([None, 1, 3]))
def test_rouge_equals_rouge_score(examples, stemmer, threads):
    predictions, references = map(list, zip(*examples, strict=True))
    expected = [rouge_scorer(stemmer).score(reference, prediction) for prediction, reference in examples]
    tokenizers = ["rouge_score"]
    if all(text.isascii() for pair in examples for text in pair):
        tokenizers.append("auto")  # the default: the same on what rouge-score is made for
    for tokenizer in tokenizers:
        for name in expected[0]:
            for measure, field in (("f1", "fmeasure"), ("precision", "precision"), ("recall", "recall")):
                metric = fb.metrics.get(name, stemmer=stemmer, tokenizer=tokenizer, measure=measure, threads=threads)
                values = [getattr(scores[name], field) for scores in expected]
                assert metric.per_example(predictions, references) == pytest.approx(values, abs=1e-12), name
                assert metric(predictions, references) == pytest.approx(np.mean(values), abs=1e-12)


@given(
    st.lists(st.tuples(texts(max_size=8), st.lists(texts(max_size=8), min_size=1, max_size=3)), min_size=1, max_size=4)
)
def test_rouge_takes_the_best_of_several_references(examples):
    predictions, references = map(list, zip(*examples, strict=True))
    for name in ("rouge1", "rougeL", "rougeLsum"):
        expected = [rouge_scorer(True).score_multi(r, p)[name].fmeasure for p, r in examples]
        metric = fb.metrics.get(name, stemmer=True, tokenizer="rouge_score")
        assert metric.per_example(predictions, references) == pytest.approx(expected, abs=1e-12)


def test_long_texts_span_many_words_of_bits():
    generator = random.Random(0)
    words = [f"w{i}" for i in range(40)]
    examples = [[" ".join(generator.choices(words, k=generator.randint(60, 400))) for _ in range(2)] for _ in range(6)]
    for prediction, reference in examples:
        expected = rouge_scorer(False).score(reference, prediction)["rougeL"].fmeasure
        assert fb.metrics.get("rougeL")([prediction], [reference]) == pytest.approx(expected, abs=1e-12)


def test_stems_equal_nltk():
    stemmer = pytest.importorskip("nltk.stem.porter", reason="compares with nltk").PorterStemmer()
    from pydoc_data import topics

    generator = random.Random(0)
    # fmt: off
    endings = [
        "ing", "ed", "s", "ies", "ied", "eed", "ational", "tional", "enci", "anci", "izer", "bli", "alli", "entli",
        "eli", "ousli", "ization", "ation", "ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti",
        "biliti", "fulli", "logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence",
        "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti",
        "ous", "ive", "ize", "e", "ll", "y", "yy",
    ]
    # fmt: on
    made = {
        "".join(generator.choices("aeiouylltsnbzwxr0", k=generator.randint(0, 6))) + generator.choice(endings)
        for _ in range(20_000)
    }
    real = set(re.findall("[a-z0-9]+", " ".join(topics.topics.values()).lower()))
    assert [word for word in made | real if _native.porter_stem(word) != stemmer.stem(word)] == []


BLEU_OPTIONS = [
    ({}, {}),
    ({"lowercase": True}, {"lowercase": True}),
    ({"smoothing": "floor"}, {"smooth_method": "floor"}),
    ({"smoothing": "add-k", "smooth_value": 0.5}, {"smooth_method": "add-k", "smooth_value": 0.5}),
    ({"smoothing": "none"}, {"smooth_method": "none"}),
    ({"effective_order": True}, {"effective_order": True}),
    ({"max_order": 2}, {"max_ngram_order": 2}),
    ({"tokenizer": "none"}, {"tokenize": "none"}),
    ({"tokenizer": "zh"}, {"tokenize": "zh"}),
    ({"tokenizer": "char", "effective_order": True}, {"tokenize": "char", "effective_order": True}),
]


def several_references():
    return st.integers(1, 3).flatmap(
        lambda count: st.lists(
            st.tuples(texts(max_size=12), st.lists(texts(max_size=12), min_size=count, max_size=count)),
            min_size=1,
            max_size=6,
        )
    )


@pytest.mark.filterwarnings("ignore:bleu")
@given(several_references(), st.sampled_from(BLEU_OPTIONS))
def test_bleu_equals_sacrebleu_in_value_and_signature(examples, options):
    sacrebleu = pytest.importorskip("sacrebleu.metrics", reason="compares with sacrebleu")
    mine, theirs = options
    predictions, references = map(list, zip(*examples, strict=True))
    peer = sacrebleu.BLEU(**theirs, force=True)
    expected = peer.corpus_score(predictions, [list(stream) for stream in zip(*references, strict=True)])
    metric = fb.metrics.get("bleu", **mine)
    assert 100 * metric(predictions, references) == pytest.approx(expected.score, abs=1e-9)
    assert metric.signature.split("|version")[0] == str(peer.get_signature()).split("|version")[0]
    halves = [metric.update(metric.init(), predictions[part], references[part]) for part in (slice(1), slice(1, None))]
    assert 100 * metric.result(metric.merge(*halves)) == pytest.approx(expected.score, abs=1e-9)


@given(
    several_references(),
    st.sampled_from(
        [{}, {"word_order": 2}, {"lowercase": True}, {"whitespace": True}, {"eps_smoothing": True, "beta": 3}]
    ),
)
def test_chrf_equals_sacrebleu_in_value_and_signature(examples, options):
    sacrebleu = pytest.importorskip("sacrebleu.metrics", reason="compares with sacrebleu")
    predictions, references = map(list, zip(*examples, strict=True))
    peer = sacrebleu.CHRF(**options)
    expected = peer.corpus_score(predictions, [list(stream) for stream in zip(*references, strict=True)]).score
    metric = fb.metrics.get("chrf", **options)
    assert 100 * metric(predictions, references) == pytest.approx(expected, abs=1e-9)
    assert metric.signature.split("|version")[0] == str(peer.get_signature()).split("|version")[0]


def test_the_signature_is_sacrebleus_own():
    sacrebleu = pytest.importorskip("sacrebleu", reason="compares with sacrebleu")
    if sacrebleu.__version__ != "2.6.0":
        pytest.skip("the signature names the release 2.6.0, whose scores are reproduced")
    peer = sacrebleu.metrics.BLEU()
    peer.corpus_score(["a b"], [["a b"]])
    assert fb.metrics.get("bleu").signature == str(peer.get_signature())


def slow_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@given(pairs(), st.integers(0, 2**32))
def test_error_rates_equal_plain_levenshtein(examples, seed):
    generator = random.Random(seed)
    examples = [*examples, *[["".join(generator.choices("ab c", k=generator.randint(50, 200))) for _ in range(2)]] * 2]
    predictions, references = map(list, zip(*examples, strict=True))
    for name, cut in (("wer", str.split), ("cer", list)):
        edits = [slow_distance(cut(p), cut(r)) for p, r in examples]
        lengths = [len(cut(r)) for r in references]
        metric = fb.metrics.get(name)
        assert metric(predictions, references) == pytest.approx(sum(edits) / max(1, sum(lengths)))
        each = [e / max(1, n) for e, n in zip(edits, lengths, strict=True)]
        assert metric.per_example(predictions, references) == pytest.approx(each)
    assert fb.metrics.get("edit_distance")(predictions, references) == pytest.approx(np.mean(edits))


@given(st.lists(st.tuples(texts(max_size=9), texts(max_size=9)), min_size=1, max_size=5))
def test_error_rates_equal_jiwer_and_rapidfuzz(examples):
    jiwer = pytest.importorskip("jiwer", reason="compares with jiwer")
    examples = [(" ".join(p.split()), " ".join(r.split())) for p, r in examples]
    examples = [(p, r) for p, r in examples if r]
    if not examples:
        return
    predictions, references = map(list, zip(*examples, strict=True))
    assert fb.metrics.get("wer")(predictions, references) == pytest.approx(jiwer.wer(references, predictions))
    assert fb.metrics.get("cer")(predictions, references) == pytest.approx(jiwer.cer(references, predictions))


class NoSynonyms:
    def synsets(self, word):
        return []


@given(pairs())
def test_meteor_equals_nltk_without_synonyms(examples):
    meteor = pytest.importorskip("nltk.translate.meteor_score", reason="compares with nltk")
    metric = fb.metrics.get("meteor", tokenizer="rouge_score", alpha=0.8)
    for prediction, reference in examples:
        sides = [re.findall("[a-z0-9]+", text.lower()) for text in (reference, prediction)]
        expected = meteor.single_meteor_score(*sides, wordnet=NoSynonyms(), alpha=0.8)
        assert metric([" ".join(sides[1])], [" ".join(sides[0])]) == pytest.approx(expected, abs=1e-12)


def test_published_cases(read_cases):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in read_cases("text"):
            for name, expected in case["expected"].items():
                metric = fb.metrics.get(name, **case.get("options", {}).get(name, {}))
                value = metric(case["predictions"], case["references"])
                assert value == pytest.approx(expected, abs=5e-5), (case["name"], name)


def test_an_accented_word_is_not_the_word_without_its_letter():
    assert fb.metrics.get("rouge1")(["Crist bal"], ["Cristóbal"]) < 1
    assert fb.metrics.get("rouge1", tokenizer="rouge_score")(["Crist bal"], ["Cristóbal"]) == 1.0  # rouge-score's way


def test_composed_and_decomposed_letters_are_the_same_word():
    assert fb.metrics.get("rouge1")(["Cristo\u0301bal"], ["Cristóbal"]) == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("日本語 text", ["日", "本", "語", "text"]),
        ("กินข้าว", ["กิ", "น", "ข้", "า", "ว"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("don't-stop", ["don", "t", "stop"]),
        ("naïve_word x²", ["naïve", "word", "x²"]),
        ("日a本", ["日", "a", "本"]),
    ],
)
def test_words_by_script(text, words):
    import unicodedata

    from fastbudget.metrics.content_words import words as cut

    assert cut([text]) == [[unicodedata.normalize("NFC", word) for word in words]]


def test_the_automatic_choice_is_announced_once_and_in_the_signature():
    metric = fb.metrics.get("rouge1")
    assert "tokenizer:auto" in metric.signature
    with pytest.warns(UserWarning, match="every character counts as a word"):
        metric(["今天"], ["今天"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric(["今天"], ["今天"])
        fb.metrics.get("rouge1")(["plain"], ["plain"])


# -- question answering --------------------------------------------------------------------------------------------


def squad_f1(prediction, reference):
    import string
    from collections import Counter

    def words(text):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    a, b = words(prediction), words(reference)
    if not a or not b:
        return float(a == b)
    same = sum((Counter(a) & Counter(b)).values())
    return 2 * same / (len(a) + len(b)) if same else 0.0


@given(
    st.lists(
        st.tuples(
            *[st.lists(st.sampled_from(["The", "a", "cat,", "cat", "U.S.", "-", "naïve", ""])).map(" ".join)] * 2
        ),
        min_size=1,
    )
)
def test_token_f1_follows_squads_script(examples):
    predictions, references = map(list, zip(*examples, strict=True))
    expected = [squad_f1(p, r) for p, r in examples]
    assert fb.metrics.get("token_f1").per_example(predictions, references) == pytest.approx(expected)
    exact = fb.metrics.get("exact_match").per_example(predictions, references)
    assert all(f1 == 1.0 for f1, hit in zip(expected, exact, strict=True) if hit)


def test_exact_match_normalizes_and_takes_any_reference():
    metric = fb.metrics.get("exact_match")
    assert metric(["The U.S.", "x"], [["us", "usa"], ["y", "z"]]) == 0.5
    assert fb.metrics.get("exact_match", normalize=False)(["The cat"], ["the cat"]) == 0.0


# -- others --------------------------------------------------------------------------------------------------------


def test_distinct_n_counts_over_all_texts_and_merges():
    metric = fb.metrics.get("distinct_n", n=2)
    texts = ["a b c", "a b d", "x"]
    assert metric(texts, None) == 3 / 4
    states = [metric.update(metric.init(), [text], None) for text in texts]
    assert metric.result(metric.merge(metric.merge(*states[:2]), states[2])) == 3 / 4
    value = metric.interval(metric.update(metric.init(), texts, None))
    assert value.low <= value.value <= value.high and value.num_examples == 3
    twice = metric.update(metric.update(metric.init(), texts, None, ids=[1, 2, 3]), texts, None, ids=[1, 2, 3])
    assert metric.result(twice) == 3 / 4


def test_content_overlap_looks_at_stems_of_content_words():
    metric = fb.metrics.get("content_overlap")
    assert metric(["The cats were sitting there"], ["a cat sits"]) == 1.0
    assert metric(["of the"], ["and"]) == 1.0 and metric(["of the"], ["cat"]) == 0.0


def letters(texts):
    return [np.eye(26)[[ord(c) - 97 for c in text if "a" <= c <= "z"]].reshape(-1, 26) for text in texts]


def test_embedding_match_is_greedy_and_checks_its_encoder():
    metric = fb.metrics.get("bertscore", encoder=letters)
    assert metric.signature == "bertscore|version:1|encoder:letters|measure:f1"
    # precision 2 of 3, recall 2 of 2
    assert metric(["abc"], ["ab"]) == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    assert metric.per_example(["abc", "", "", "xy"], [["xyz", "abc"], [""], ["a"], ["ab"]]).tolist() == [1, 1, 0, 0]
    with pytest.raises(fb.InvalidInputError, match="1 arrays for 2 texts"):
        fb.metrics.get("bertscore", encoder=lambda texts: [np.ones((1, 2))])(["a"], ["b"])
    with pytest.raises(fb.InvalidInputError, match="finite"):
        fb.metrics.get("bertscore", encoder=lambda texts: [np.full((1, 2), np.nan) for _ in texts])(["a"], ["b"])


# -- bad and unusual input -----------------------------------------------------------------------------------------

TEXT_METRICS = [
    "rouge1", "rouge2", "rougeL", "rougeLsum", "bleu", "chrf", "meteor", "wer", "cer", "edit_distance", "token_f1",
    "exact_match", "content_overlap",
]  # fmt: skip


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_bad_texts_are_named(name):
    metric = fb.metrics.get(name)
    for predictions, references, message in (
        (["a", "b", "c"], [["a", "b", "c"]], "transposed"),
        (["a"], ["a", "b"], "same length, got 1 and 2"),
        ("a", ["a"], "list of texts"),
        (["a", None], ["a", "b"], r"predictions\[1\] must be a text, got None"),
        (["a"], [float("nan")], r"references\[0\]"),
        (["a"], [[]], r"references\[0\] is an empty list"),
        (["\ud800"], ["a"], "Unicode"),
        ([], [], "at least one example"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            metric(predictions, references)


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_empty_texts_have_defined_values(name):
    metric = fb.metrics.get(name)
    lower = not metric.higher_is_better
    assert metric([""], ["word"]) == (pytest.approx({"wer": 1, "cer": 1, "edit_distance": 4}[name]) if lower else 0.0)
    one_more = {"wer": 1, "cer": 4, "edit_distance": 4}
    assert metric(["word"], [""]) == (one_more[name] if lower else 0.0)
    both = {"token_f1": 1.0, "exact_match": 1.0, "content_overlap": 1.0}.get(name, 0.0)
    assert metric([""], [""]) == both


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_containers_splits_threads_and_ids_change_nothing(name):
    generator = random.Random(1)
    plain = [word for word in WORDS if not any("\u0e00" <= c < "\uac00" for c in word)]
    predictions = [" ".join(generator.choices(plain, k=generator.randint(0, 9))) for _ in range(700)]
    references = [p if generator.random() < 0.5 else p[:5] + " cat" for p in predictions]
    metric = fb.metrics.get(name)
    expected = metric(predictions, references)
    one, many = (np.array(side, dtype=object) for side in (predictions, references))
    assert metric(one, many) == expected
    pandas = pytest.importorskip("pandas", reason="reads pandas columns")
    pyarrow = pytest.importorskip("pyarrow", reason="reads pyarrow columns")
    assert metric(pandas.Series(predictions, index=range(5, 705)), pandas.Series(references)) == expected
    assert metric(pyarrow.chunked_array([predictions[:9], predictions[9:]]), pyarrow.array(references)) == expected
    parts = [slice(0, 13), slice(13, 400), slice(400, 700)]
    states = [metric.update(metric.init(), predictions[p], references[p], ids=range(700)[p]) for p in parts]
    overlap = metric.update(metric.init(), predictions[690:], references[690:], ids=range(690, 700))
    merged = metric.merge(metric.merge(states[2], overlap), metric.merge(states[0], states[1]))
    assert metric.result(merged) == pytest.approx(expected, abs=1e-15)
    value = metric.interval(states[0])
    assert value.low <= value.value <= value.high and value.num_examples == 13
    if name not in ("exact_match", "content_overlap"):
        for threads in (1, 2, 5):
            assert fb.metrics.get(name, threads=threads)(predictions, references) == expected
