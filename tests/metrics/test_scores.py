"""Metrics of scores, of several labels, and the rest of classification, against scikit-learn and torchmetrics."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn import metrics as sk

import fastbudget as fb
from fastbudget.metrics.device_counting import count_on_device

pytestmark = pytest.mark.filterwarnings("ignore")


@st.composite
def label_pairs(draw):
    classes, n = draw(st.integers(2, 6)), draw(st.integers(1, 60))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    references = generator.integers(0, classes, n)
    return np.where(
        generator.random(n) < draw(st.sampled_from([0, 0.5, 1])), references, generator.integers(0, classes, n)
    ), references


@given(label_pairs())
def test_label_metrics_equal_scikit_learn(pair):
    predictions, references = pair
    assert fb.metrics.get("balanced_accuracy")(*pair) == pytest.approx(
        sk.balanced_accuracy_score(references, predictions)
    )
    assert fb.metrics.get("mcc")(*pair) == pytest.approx(sk.matthews_corrcoef(references, predictions), abs=1e-12)
    assert fb.metrics.get("hamming_loss")(*pair) == pytest.approx(sk.hamming_loss(references, predictions))
    expected = sk.cohen_kappa_score(references, predictions)
    if np.isnan(expected):
        with pytest.raises(fb.InvalidInputError, match="undefined"):
            fb.metrics.get("cohen_kappa")(*pair)
    else:
        assert fb.metrics.get("cohen_kappa")(*pair) == pytest.approx(expected, abs=1e-12)
        assert fb.metrics.cohen_kappa(predictions.tolist(), references.tolist()) == pytest.approx(expected, abs=1e-12)
    classes = np.union1d(predictions, references)
    specificities = []
    for c in classes:
        absent = references != c
        specificities.append((predictions[absent] != c).mean() if absent.any() else 0.0)
    assert fb.metrics.get("specificity_macro")(*pair) == pytest.approx(np.mean(specificities))
    each = fb.metrics.get("f1", average="none")(*pair)
    assert each[classes] == pytest.approx(sk.f1_score(references, predictions, average=None, zero_division=0))
    assert (
        fb.metrics.get("confusion_matrix", num_classes=6)(*pair).tolist()
        == sk.confusion_matrix(references, predictions, labels=range(6)).tolist()
    )
    right = fb.metrics.get("accuracy").per_example(*pair)
    assert right.tolist() == (predictions == references).astype(float).tolist()


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32), st.booleans())
def test_several_labels_equal_scikit_learn(n, labels, seed, as_scores):
    generator = np.random.default_rng(seed)
    references = generator.integers(0, 2, (n, labels))
    scores = np.round(generator.random((n, labels)), 1)
    predictions = (scores >= 0.5).astype(np.int64)
    given_predictions = scores if as_scores else torch.from_numpy(predictions)
    if labels == 1:  # scikit-learn takes one column for single labels
        return
    peers = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
    for family, peer in peers.items():
        for average in ("micro", "macro", "weighted", "samples"):
            expected = peer(references, predictions, average=average, zero_division=0)
            metric = fb.metrics.get(f"{family}_{average}")
            assert metric(given_predictions, references) == pytest.approx(expected), (family, average)
    assert fb.metrics.get("accuracy")(given_predictions, references) == pytest.approx(
        sk.accuracy_score(references, predictions)
    )
    assert fb.metrics.get("hamming_loss")(given_predictions, references) == pytest.approx(
        sk.hamming_loss(references, predictions)
    )
    metric = fb.metrics.get("f1_macro")
    states = [metric.update(metric.init(), predictions[p], references[p]) for p in (slice(0, n // 2), slice(n // 2, n))]
    assert metric.result(metric.merge(*states)) == metric(predictions, references)


def test_several_labels_have_an_interval():
    generator = np.random.default_rng(0)
    references = generator.integers(0, 2, (50, 3))
    predictions = np.where(generator.random((50, 3)) < 0.8, references, 1 - references)
    for name in ("f1_macro", "f1_samples", "accuracy"):
        metric = fb.metrics.get(name)
        value = metric.interval(metric.update(metric.init(), predictions, references))
        assert value.low < value.value < value.high and value.num_examples == 50


def probabilities(generator, n, classes):
    scores = generator.random((n, classes)) ** 3 + 1e-3
    scores = np.round(scores / scores.sum(1, keepdims=True), 1) + 0.01  # many ties
    return scores / scores.sum(1, keepdims=True)


@given(st.integers(3, 80), st.integers(2, 6), st.integers(0, 2**32))
def test_scores_of_classes_equal_scikit_learn(n, classes, seed):
    generator = np.random.default_rng(seed)
    scores = probabilities(generator, n, classes)
    references = np.concatenate([np.arange(classes), generator.integers(0, classes, n)])[:n] if n > classes else None
    if references is None:
        return
    for k in (1, 2, classes):
        expected = sk.top_k_accuracy_score(
            references, scores if classes > 2 else scores[:, 1], k=k, labels=np.arange(classes)
        )
        if classes > 2:
            assert fb.metrics.get("top_k_accuracy", k=k)(scores, references) == pytest.approx(expected)
    assert fb.metrics.get("log_loss")(scores, references) == pytest.approx(
        sk.log_loss(references, scores, labels=np.arange(classes)), rel=1e-6
    )
    one_hot = np.eye(classes)[references]
    brier = np.square(scores - one_hot).sum(1).mean() / (2 if classes == 2 else 1)
    assert fb.metrics.get("brier")(scores, references) == pytest.approx(brier)
    if classes == 2:
        assert fb.metrics.get("brier")(scores[:, 1], references) == pytest.approx(
            sk.brier_score_loss(references, scores[:, 1])
        )
        assert fb.metrics.get("auroc")(scores, references) == pytest.approx(sk.roc_auc_score(references, scores[:, 1]))
        assert fb.metrics.get("average_precision")(scores[:, 1], references) == pytest.approx(
            sk.average_precision_score(references, scores[:, 1])
        )
        return
    for average in ("macro", "weighted", "micro"):
        # scikit-learn wants rows that add up to 1 to the last bit; one against the rest is the same without that.
        assert fb.metrics.get("auroc", average=average)(scores, references) == pytest.approx(
            sk.roc_auc_score(one_hot, scores, average=average)
        )
        assert fb.metrics.get("average_precision", average=average)(scores, references) == pytest.approx(
            sk.average_precision_score(one_hot, scores, average=average)
        )
        assert fb.metrics.get("auroc", average=average)(scores, one_hot.astype(int)) == pytest.approx(
            sk.roc_auc_score(one_hot, scores, average=average)
        )


@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=True, width=32), st.integers(0, 1)), min_size=2),
    st.sampled_from([1, 2]),
)
def test_areas_of_any_scores_equal_counting_pairs(examples, threads):
    scores, labels = np.array([s for s, _ in examples]), np.array([y for _, y in examples])
    positive, negative = scores[labels == 1], scores[labels == 0]
    metric = fb.metrics.get("auroc", threads=threads)
    if len(positive) == 0 or len(negative) == 0:
        with pytest.raises(fb.InvalidInputError, match="every class needs examples"):
            metric(scores, labels)
        return
    pairs = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    assert metric(scores, labels) == pytest.approx(pairs, abs=1e-12)
    precision = 0.0
    for threshold in sorted(set(positive)):
        found = (positive >= threshold).sum()
        precision += (positive == threshold).sum() * found / (found + (negative >= threshold).sum())
    assert fb.metrics.get("average_precision", threads=threads)(scores, labels) == pytest.approx(
        precision / len(positive)
    )


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_the_calibration_error_is_that_of_equal_bins(n, bins, seed):
    generator = np.random.default_rng(seed)
    scores = generator.dirichlet(np.ones(4), n)
    references = generator.integers(0, 4, n)
    confidence, right = scores.max(1), scores.argmax(1) == references
    expected = 0.0
    for low in np.arange(bins) / bins:
        inside = (confidence > low) & (confidence <= low + 1 / bins)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert fb.metrics.get("ece", bins=bins)(scores, references) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "predictions", "references", "message"),
    [
        ("log_loss", [[3.0, -1.0]], [0], "Apply softmax"),
        ("brier", [[0.2, 0.2]], [0], "adds up to 0.4"),
        ("ece", [[np.nan, 1.0]], [0], r"predictions\[0\] holds NaN"),
        ("top_k_accuracy", [[0.1, 0.9]], [2], r"references\[0\] is 2"),
        ("accuracy", np.array([[0.1, 0.9]]), [2], r"references\[0\] is 2, but predictions hold scores of 2 classes"),
        ("auroc", [0.1, np.nan], [0, 1], "NaN"),
        ("auroc", [0.1, 0.2], [0, 2], r"references\[1\] is 2"),
        ("mcc", [[1, 0]], [[1, 0]], "one label per example"),
        ("f1_macro", [[1, 2]], [[1, 0]], r"predictions\[0, 1\] is 2; labels must be 0 or 1"),
        ("f1_samples", [0, 1], [0, 1], "several labels"),
        ("f1_macro", [[0.5, np.nan]], [[1, 0]], r"predictions\[0\] holds NaN"),
        ("pearson", [1.0], [2.0], "undefined"),
        ("r2", [1.0, 2.0], [3.0, 3.0], "undefined"),
        ("spearman", [[1.0, 2.0]], [[1.0, 2.0]], "one number per example"),
    ],
)  # fmt: skip
def test_nonsense_is_an_error(name, predictions, references, message):
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.metrics.get(name)(predictions, references)


numbers = st.lists(st.tuples(st.floats(-1e3, 1e3), st.sampled_from([-1.0, 0.0, 0.5, 7.0])), min_size=3, max_size=60)


@given(numbers, st.integers(1, 40))
def test_correlations_equal_scipy_and_any_split_merges(pairs, cut):
    predicted, reference = np.array(pairs).T
    if np.ptp(predicted) < 1e-6 or np.ptp(reference) == 0:
        return
    expected = {
        "rmse": sk.root_mean_squared_error(reference, predicted),
        "r2": sk.r2_score(reference, predicted),
        "pearson": scipy_stats.pearsonr(reference, predicted).statistic,
        "spearman": scipy_stats.spearmanr(reference, predicted).statistic,
    }
    for name, value in expected.items():
        metric = fb.metrics.get(name)
        assert metric(predicted, reference) == pytest.approx(value, rel=1e-9, abs=1e-9), name
        halves = [metric.update(metric.init(), predicted[p], reference[p]) for p in (slice(cut), slice(cut, None))]
        assert metric.result(metric.merge(*halves)) == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_a_correlation_has_an_interval():
    generator = np.random.default_rng(0)
    reference = generator.normal(size=300)
    predicted = reference + generator.normal(size=300)
    for name in ("pearson", "spearman", "r2", "rmse"):
        metric = fb.metrics.get(name)
        value = metric.interval(metric.update(metric.init(), predicted, reference))
        assert value.low < value.value < value.high


# -- example ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "log_loss", "auroc", "mse", "nll"])
def test_an_example_seen_twice_counts_once(name):
    generator = np.random.default_rng(3)
    if name == "nll":
        predictions, references = generator.normal(size=(10, 4, 5)), generator.integers(0, 5, (10, 4))
    else:
        predictions, references = generator.random(10), np.arange(10) % 2
        if name in ("accuracy", "f1_macro"):
            predictions = (predictions > 0.5).astype(np.int64)
    metric = fb.metrics.get(name)
    # Twelve indices from three ranks over ten samples.
    ranks = [np.array([0, 3, 6, 9]), np.array([1, 4, 7, 0]), np.array([2, 5, 8, 1])]
    states = [metric.update(metric.init(), predictions[r], references[r], ids=r) for r in ranks]
    merged = metric.merge(metric.merge(states[1], states[2]), states[0])
    assert metric.result(merged) == pytest.approx(metric(predictions, references), abs=1e-12)
    assert metric.interval(merged).num_examples == 10
    other = metric.update(metric.init(), predictions[[0]], references[[1]], ids=[0])
    with pytest.raises(fb.InvalidInputError, match="came twice, with different values"):
        metric.result(metric.merge(merged, other))
    with pytest.raises(fb.InvalidInputError, match="with every batch or with none"):
        metric.update(merged, predictions[:1], references[:1])
    texts = metric.update(metric.init(), predictions[:2], references[:2], ids=["a", "b"])
    assert metric.interval(texts).num_examples == 2
    hashes = np.frombuffer(bytes(range(32)), np.uint8).reshape(2, 16)
    assert metric.interval(metric.update(metric.init(), predictions[:2], references[:2], ids=hashes)).num_examples == 2
    with pytest.raises(fb.InvalidInputError, match="ids must be one"):
        metric.update(metric.init(), predictions[:2], references[:2], ids=[1])


def test_states_travel_between_processes():
    for name in fb.metrics.list(task="classification"):
        metric = fb.metrics.get(name)
        state = pickle.loads(pickle.dumps(metric.init()))
        assert metric.merge(state, metric.init()) is not None


# -- signatures and registry ---------------------------------------------------------------------------------------


def test_signatures_name_version_and_every_option_that_changes_values():
    assert fb.metrics.get("f1_macro", threads=3).signature == fb.metrics.get("f1_macro").signature
    assert "average:macro" in fb.metrics.get("f1_macro").signature
    assert fb.metrics.get("rougeL").signature != fb.metrics.get("rougeL", stemmer=True).signature
    assert fb.metrics.get("rouge1").signature != fb.metrics.get("rouge2").signature
    assert "version:" in fb.metrics.get("meteor").signature and "exact+stem" in fb.metrics.get("meteor").signature
    for name in fb.metrics.list():
        if name != "bertscore":
            signature = fb.metrics.get(name).signature
            assert "version:" in signature and "\n" not in signature


def test_every_metric_says_what_one_example_is_worth_or_that_it_cannot():
    for name in fb.metrics.list(task="classification"):
        metric = fb.metrics.get(name)
        if metric.is_mean:
            scores = np.array([[0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
            values = metric.per_example(scores, [1, 0, 0])
            assert values.dtype == np.float64 and values.shape == (3,)
            assert values.mean() == pytest.approx(metric(scores, [1, 0, 0]))
    with pytest.raises(fb.InvalidInputError, match="none per example"):
        fb.metrics.get("f1_macro").per_example([0, 1], [0, 1])


def test_options_of_wrong_values_are_refused():
    for name, options in (
        ("f1", {"average": "micra"}),
        ("top_k_accuracy", {"k": 0}),
        ("ece", {"bins": 0}),
        ("auroc", {"average": "binary"}),
        ("bleu", {"smoothing": "expo"}),
        ("bleu", {"max_order": 0}),
        ("chrf", {"char_order": 0}),
        ("rougeL", {"measure": "f"}),
        ("rougeL", {"tokenizer": "autos"}),
        ("meteor", {"alpha": 1.0}),
        ("distinct_n", {"n": 0}),
        ("wer", {"tokenizer": "13a"}),
    ):
        with pytest.raises(fb.InvalidInputError):
            fb.metrics.get(name, **options)


# -- labels on a device --------------------------------------------------------------------------------------------


@given(label_pairs(), st.booleans())
def test_counting_on_a_device_equals_counting_here(pair, says_classes):
    predictions, references = (torch.from_numpy(side) for side in pair)
    classes = 7 if says_classes else None
    expected = fb.metrics.get("confusion_matrix", num_classes=classes)(*pair)
    assert np.array_equal(count_on_device(predictions, references, classes), expected)


def test_counting_on_a_device_names_bad_labels():
    two = torch.tensor([0, 2])
    for predictions, references, classes, message in (
        (torch.tensor([0, 3]), two, 3, r"predictions\[1\] is 3"),
        (two, torch.tensor([-1, 0]), None, r"references\[0\] is -1"),
        (two, torch.tensor([0]), None, "same length"),
        (two.float(), two, None, "integer class labels"),
        (torch.tensor([0, 5000]), two, None, "up to 4096 classes"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            count_on_device(predictions, references, classes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_labels_of_a_gpu_are_counted_there():
    predictions, references = torch.randint(0, 10, (2, 100_000), device="cuda")
    metric = fb.metrics.get("f1_macro")
    assert metric(predictions, references) == pytest.approx(metric(predictions.cpu(), references.cpu()), abs=1e-15)


def test_columns_of_other_libraries_are_read():
    pandas = pytest.importorskip("pandas", reason="reads pandas columns")
    pyarrow = pytest.importorskip("pyarrow", reason="reads pyarrow columns")
    predictions, references = [1, 0, 2, 1], [1, 0, 1, 1]
    for name in ("accuracy", "mse"):
        expected = fb.metrics.get(name)(predictions, references)
        assert (
            fb.metrics.get(name)(pandas.Series(predictions), pandas.Series(references, index=[5, 6, 7, 8])) == expected
        )
        assert (
            fb.metrics.get(name)(pyarrow.array(predictions), pyarrow.chunked_array([references[:1], references[1:]]))
            == expected
        )
    with pytest.raises(fb.InvalidInputError, match="1 missing values"):
        fb.metrics.get("accuracy")(pyarrow.array([1, None, 2, 1]), references)
    scores = pyarrow.array([[0.1, 0.9], [0.8, 0.2]])
    assert fb.metrics.get("accuracy")(scores, pyarrow.array([1, 0])) == 1.0
    datasets = pytest.importorskip("datasets", reason="reads Hugging Face datasets")
    table = datasets.Dataset.from_dict({"p": predictions, "r": references, "t": ["a b", "c", "d", "e"]})
    assert fb.metrics.get("accuracy")(table["p"], table["r"]) == 0.75
    assert fb.metrics.get("rouge1")(table["t"], table["t"]) == 1.0


def test_token_metrics_from_logits_and_log_probabilities():
    generator = np.random.default_rng(0)
    logits, targets = generator.normal(size=(4, 6, 9)), generator.integers(0, 9, (4, 6))
    targets[0, 4:] = -100
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, np.maximum(targets, 0)[..., None], -1)[..., 0]
    chosen[0, 5] = np.nan  # never looked at
    perplexity = fb.metrics.get("perplexity")
    assert perplexity(chosen, targets) == pytest.approx(perplexity(logits, targets))
    assert perplexity(log_probs, targets) == pytest.approx(perplexity(logits, targets))
    accuracy = fb.metrics.get("token_accuracy")
    scored = targets != -100
    assert accuracy(torch.from_numpy(logits), torch.from_numpy(targets)) == pytest.approx(
        (logits.argmax(-1) == targets)[scored].mean()
    )
    with pytest.raises(fb.InvalidInputError, match="don't tell"):
        accuracy(chosen, targets)
    with pytest.raises(fb.InvalidInputError, match="above 0"):
        perplexity(np.ones((1, 2)), [[0, 1]])
    each = fb.metrics.get("nll").per_example(logits, targets)
    assert each[0] == pytest.approx(-chosen[0, :4].mean())


def test_no_second_copy_of_all_logits_is_made():
    import tracemalloc

    logits = np.zeros((1, 4000, 5000), np.float16)  # 40 MB; 160 MB as float64
    tracemalloc.start()
    fb.metrics.get("nll")(logits, np.zeros((1, 4000), np.int64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * 64 * 2**20 + 2**20
