"""Text metrics against rouge-score, sacrebleu, jiwer and rapidfuzz, in one run.

    python bench/metrics/text_speed.py [--quick] [--json FILE]

Each peer gives the same value before anything is timed. Timings are interleaved pairs; the ratio is the median over
pairs of peer time / fastbudget time, from Python lists of texts to the value. Exits with 1 below the promised floors,
after one retry.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from pydoc_data import topics

import jiwer
import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cpdist
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

WORDS = [word for word in " ".join(topics.topics.values()).split() if word.isascii()]


def made_pairs(n, length, seed=0):
    """Return n texts of about `length` running words of Python's documentation, and a third of them changed."""
    generator = random.Random(seed)
    predictions, references = [], []
    for _ in range(n):
        begin = generator.randrange(len(WORDS) - 2 * length)
        words = WORDS[begin : begin + generator.randint(length // 2, 3 * length // 2)]
        references.append(" ".join(words))
        predictions.append(" ".join(w if generator.random() < 0.67 else generator.choice(WORDS) for w in words))
    return predictions, references


def rouge(names, predictions, references):
    """Return ours and rouge-score's mean F1 of several ROUGE metrics with stemmer."""
    metrics = fb.metrics.MetricSet([fb.metrics.get(name, stemmer=True) for name in names])
    scorer = RougeScorer(names, use_stemmer=True)

    def peer():
        scores = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
        return [float(np.mean([score[name].fmeasure for score in scores])) for name in names]

    return lambda: list(metrics(predictions, references).values()), peer


def cases(quick):
    short = made_pairs(400 if quick else 2000, 20)
    long = made_pairs(20 if quick else 100, 300)
    sentences = made_pairs(600 if quick else 3000, 25)
    spoken = made_pairs(600 if quick else 3000, 25)
    names = ["rouge1", "rouge2", "rougeL"]
    bleu, chrf = BLEU(), CHRF()
    predictions, references = sentences
    yield f"ROUGE-1/2/L, stemmer, {len(short[0])} pairs", "rouge-score", 100, *rouge(names, *short)
    yield f"ROUGE-1/2/L, stemmer, {len(long[0])} pairs of 300 tokens", "rouge-score", 100, *rouge(names, *long)

    # sacrebleu caches tokenized lines; what a user scores once isn't cached.
    def uncached_bleu():
        for cached in (bleu.tokenizer.__class__.__call__, bleu.tokenizer._post_tokenizer.__class__.__call__):
            cached.cache_clear()
        return [bleu.corpus_score(predictions, [references]).score / 100]

    ours = fb.metrics.get("bleu")
    yield f"BLEU 13a, {len(predictions)} sentences", "sacrebleu", 20, lambda: [ours(*sentences)], uncached_bleu
    ours_chrf = fb.metrics.get("chrf")
    yield (
        f"chrF, {len(predictions)} sentences",
        "sacrebleu",
        None,
        lambda: [ours_chrf(*sentences)],
        lambda: [chrf.corpus_score(predictions, [references]).score / 100],
    )
    wer, cer = fb.metrics.get("wer"), fb.metrics.get("cer")
    hypotheses, spoken_references = spoken
    yield (
        f"WER, {len(hypotheses)} pairs",
        "jiwer",
        10,
        lambda: [wer(hypotheses, spoken_references)],
        lambda: [jiwer.wer(spoken_references, hypotheses)],
    )

    def rapidfuzz_cer():
        edits = cpdist(spoken_references, hypotheses, scorer=Levenshtein.distance, workers=-1)
        return [float(edits.sum() / sum(map(len, spoken_references)))]

    yield (
        f"CER, {len(hypotheses)} pairs",
        "rapidfuzz",
        None,
        lambda: [cer(hypotheses, spoken_references)],
        rapidfuzz_cer,
    )

    def rapidfuzz_wer():
        edits = sum(
            Levenshtein.distance(r.split(), h.split()) for r, h in zip(spoken_references, hypotheses, strict=True)
        )
        return [edits / sum(len(r.split()) for r in spoken_references)]

    yield (
        f"WER, {len(hypotheses)} pairs",
        "rapidfuzz",
        None,
        lambda: [wer(hypotheses, spoken_references)],
        rapidfuzz_wer,
    )


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio_of(ours, peer, pairs):
    mine, theirs = [], []
    for _ in range(pairs):
        theirs.append(seconds(peer))
        mine.append(statistics.median(seconds(ours) for _ in range(3)))
    return {
        "ratio": statistics.median(t / m for t, m in zip(theirs, mine, strict=True)),
        "fastbudget_s": statistics.median(mine),
        "peer_s": statistics.median(theirs),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the data")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows, slow = [], []
    for name, peer_name, floor, ours, peer in cases(options.quick):
        mine, theirs = ours(), peer()
        assert np.allclose(mine, theirs, rtol=0, atol=1e-9), (name, mine, theirs)
        result = ratio_of(ours, peer, 5)
        if floor is not None and result["ratio"] < floor:
            result = ratio_of(ours, peer, 7)
        rows.append({"case": name, "peer": peer_name, "promised": floor, "values": mine, **result})
        print(f"{name:48} {peer_name:12} {result['ratio']:8.1f}x  "
              f"({result['peer_s'] * 1e3:8.1f} ms against {result['fastbudget_s'] * 1e3:7.2f} ms)")  # fmt: skip
        if floor is not None and result["ratio"] < floor:
            slow.append(f"{name}: {result['ratio']:.1f}x {peer_name}, promised {floor}x")
    if options.json:
        packages = ("fastbudget", "numpy", "rouge-score", "sacrebleu", "jiwer", "rapidfuzz")
        document = {
            "benchmark": "text metrics",
            "quick": options.quick,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {package: version(package) for package in packages},
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
