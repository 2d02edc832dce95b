from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest

import fastbudget as fb
from fastbudget import _C
from fastbudget.stats import bootstrap, bootstrap_sums

scipy_stats = pytest.importorskip("scipy.stats")


def skewed(n: int = 200) -> np.ndarray:
    return np.random.default_rng(2).gamma(1.0, 2.0, n)


# --- the generator --------------------------------------------------------------------------------------------------


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_the_reference_gives_the_known_answers() -> None:
    # Random123's kat_vectors, philox4x32 10.
    assert philox((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox((ones,) * 4, (ones, ones)) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def numbers_of(seed: int, stream: int, purpose: int) -> Iterator[int]:
    """The 32-bit numbers of a stream: blocks of 16 counters, the first word of each, then the second, ..."""
    key = (seed & 0xFFFFFFFF, seed >> 32)
    for block in count():
        words = [philox((block * 16 + lane, stream, 0, purpose), key) for lane in range(16)]
        yield from (words[lane][word] for word in range(4) for lane in range(16))


def reference_counts(n: int, seed: int, stream: int) -> list[int]:
    """Poisson counts of a rate below one, retried while they sum to more than n, then single draws up to n."""
    bits, singles = numbers_of(seed, stream, 2), numbers_of(seed, stream, 4)
    rate = max(0.0, 1 - 2.5 / math.sqrt(n))
    cells = [65536 * math.exp(-rate) * rate**k / math.factorial(k) for k in range(40)]
    whole = [math.floor(share) if k < 8 else 0 for k, share in enumerate(cells)]

    def poisson(number: int) -> int:
        cell = (number + 32768) % 65536  # numbers are signed
        for k, size in enumerate(whole):
            if cell < size:
                return k
            cell -= size
        uniform = (((next(singles) << 32) | next(singles)) >> 11) / 2**53 * (65536 - sum(whole))
        for k, size in enumerate(whole):
            if uniform < cells[k] - size:
                return k
            uniform -= cells[k] - size
        raise AssertionError

    drawn = [n + 1]
    while rate and sum(drawn) > n:
        halves = (half for number in islice(bits, -(-n // 128) * 64) for half in (number & 0xFFFF, number >> 16))
        drawn = [poisson(half) for half in halves][:n]
    if not rate:
        drawn = [0] * n
    while sum(drawn) < n:
        product = next(singles) * n
        if product % 2**32 >= 2**32 % n:
            drawn[product >> 32] += 1
    return drawn


@pytest.mark.parametrize("n", [1, 5, 7, 150, 1000])
def test_resamples_are_the_references(n: int) -> None:
    seed, streams = (7 << 32) + 5, 10
    drawn = _C.bootstrap_indices(np.empty((n, 0)), np.array([0, n]), 0, streams, seed)
    for stream in range(streams):
        assert np.bincount(drawn[stream], minlength=n).tolist() == reference_counts(n, seed, stream)


@pytest.mark.parametrize("n", [6, 7, 60])
def test_resamples_are_multinomial(n: int) -> None:
    # How often a row occurs is Binomial(n, 1 / n), and two rows' counts correlate by -1 / (n - 1).
    resamples = 100_000
    drawn = _C.bootstrap_indices(np.empty((n, 0)), np.array([0, n]), 0, resamples, 3)
    counts = np.bincount((drawn + n * np.arange(resamples)[:, None]).ravel(), minlength=n * resamples).reshape(-1, n)
    assert (counts.sum(1) == n).all()
    for row in (0, n // 2, n - 1):
        seen = np.bincount(counts[:, row], minlength=n + 1)
        expected = resamples * scipy_stats.binom.pmf(np.arange(n + 1), n, 1 / n)
        common = expected >= 5
        seen, expected = (
            np.append(seen[common], seen[~common].sum()),
            np.append(expected[common], expected[~common].sum()),
        )
        assert scipy_stats.chisquare(seen, expected).pvalue > 1e-4
    assert np.corrcoef(counts[:, 0], counts[:, 1])[0, 1] == pytest.approx(-1 / (n - 1), abs=4 / math.sqrt(resamples))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("scale", [None, 30, 32_767])
def test_sums_are_those_of_the_indices_for_any_threads(columns: int, scale: int | None) -> None:
    generator = np.random.default_rng(0)
    shape = (2777, columns)
    # Small whole numbers are summed as such; 32,767 times 65,538 rows or more would not fit.
    rows = generator.normal(size=shape) if scale is None else generator.integers(-scale, scale + 1, shape).astype(float)
    starts = np.array([0, 100, 101, 2777])
    indices = _C.bootstrap_indices(rows, starts, 0, 301, 9)
    for begin, end in ((0, 100), (100, 101), (101, 2777)):
        part = indices[:, begin:end]
        assert part.min() >= begin and part.max() < end
    sums = _C.bootstrap_sums(rows, starts, 0, 301, 9, 1)
    assert sums == pytest.approx(rows[indices].sum(1), abs=1e-9 if scale is None else 0)
    for threads in (2, 5):
        assert (_C.bootstrap_sums(rows, starts, 0, 301, 9, threads) == sums).all()
    assert (_C.bootstrap_sums(rows, starts, 41, 10, 9, 2) == sums[41:51]).all()


def test_large_whole_numbers_are_summed_exactly() -> None:
    rows = np.full((70_000, 1), 32_767.0)
    assert (_C.bootstrap_sums(rows, np.array([0, 70_000]), 0, 4, 0, 1) == 70_000 * 32_767.0).all()
    mixed = np.append(rows, [[32_768.0]], axis=0)
    indices = _C.bootstrap_indices(mixed, np.array([0, 70_001]), 0, 4, 0)
    assert (_C.bootstrap_sums(mixed, np.array([0, 70_001]), 0, 4, 0, 1) == mixed[indices].sum(1)).all()


# --- agreement with scipy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["percentile", "basic", "bca"])
@pytest.mark.parametrize("statistic", ["mean", np.median])
def test_methods_agree_with_scipy(method: str, statistic: object) -> None:
    values = skewed()
    function = np.mean if statistic == "mean" else statistic
    names = {"bca": "BCa"}
    theirs = scipy_stats.bootstrap((values,), function, n_resamples=10_000, method=names.get(method, method), rng=3)
    mine = bootstrap(values, statistic, method=method, resamples=10_000)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert tuple(mine) == pytest.approx(tuple(theirs.confidence_interval), abs=0.06 * width)
    assert mine.se == pytest.approx(theirs.standard_error, rel=0.06)
    assert mine.value == function(values) and mine.exactness == "approximate"


@pytest.mark.parametrize("method", ["percentile", "basic", "bca"])
@pytest.mark.parametrize("successes", [2, 30, 48])
def test_binary_data_need_no_resamples(method: str, successes: int) -> None:
    values = np.repeat([1.0, 0.0], [successes, 50 - successes])
    exact = bootstrap(values, method=method)
    sampled = bootstrap(values, lambda x, axis: x.mean(axis), method=method, resamples=40_000)
    assert tuple(exact) == pytest.approx(tuple(sampled), abs=0.021)  # one step of 1 / n
    assert exact.se == pytest.approx(sampled.se, rel=0.03) and exact.exactness == "asymptotic"


def test_differences_are_resampled_in_pairs() -> None:
    generator = np.random.default_rng(5)
    baseline = generator.normal(10, 5, 300)
    values = baseline + generator.normal(0.2, 0.5, 300)
    together = bootstrap(values, baseline=baseline)
    assert together == bootstrap(values - baseline)
    general = bootstrap(values, lambda x, axis: x.mean(axis), baseline=baseline)
    assert tuple(general) == pytest.approx(tuple(together), abs=0.01)
    assert together.high - together.low < 0.2


def test_clusters_and_strata_give_the_textbook_standard_errors() -> None:
    generator = np.random.default_rng(1)
    clusters = np.repeat(np.arange(40), 10)
    values = generator.normal(0, 1, 40)[clusters] + generator.normal(0, 0.3, 400)
    means = values.reshape(40, 10).mean(1)
    expected = means.std() / math.sqrt(40)
    for statistic in ("mean", lambda x, axis: x.mean(axis)):
        found = bootstrap(values, statistic, clusters=clusters, resamples=2000)
        assert found.se == pytest.approx(expected, rel=0.08)
    strata = np.array(["a", "b"])[(np.arange(400) % 4 == 0).astype(int)]
    values = np.where(strata == "a", 5.0, -5.0) + generator.normal(0, 1, 400)
    expected = math.sqrt(sum((values[strata == s].var() * (strata == s).sum()) for s in "ab")) / 400
    for statistic in ("mean", lambda x, axis: x.mean(axis)):
        assert bootstrap(values, statistic, strata=strata, resamples=2000).se == pytest.approx(expected, rel=0.08)
    with pytest.raises(fb.InvalidInputError, match="one stratum"):
        bootstrap(values, clusters=clusters, strata=strata)


def test_corpus_statistics_are_resampled_by_their_sums() -> None:
    generator = np.random.default_rng(3)
    denominators = generator.integers(1, 20, 400).astype(float)
    numerators = denominators * generator.gamma(2, 1, 400)
    rows = np.stack([numerators, denominators], 1)

    def ratio(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1]

    indices = generator.integers(0, 400, (4000, 400))
    slow = numerators[indices].sum(1) / denominators[indices].sum(1)
    found = bootstrap_sums(rows, ratio, resamples=4000)
    width = np.diff(np.quantile(slow, [0.025, 0.975]))[0]
    assert tuple(found) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.06 * width)
    worse = rows * [0.9, 1.0]
    difference = bootstrap_sums(rows, ratio, baseline=worse, method="bca")
    assert difference.low > 0 and difference.value == pytest.approx(0.1 * ratio(rows.sum(0)))
    assert difference.high - difference.low < 0.2 * width  # paired: far narrower than either alone


@pytest.mark.parametrize(("method", "least"), [("bca", 0.90), ("percentile", 0.88)])
def test_intervals_of_a_skewed_mean_cover_about_as_often_as_they_say(method: str, least: float) -> None:
    generator = np.random.default_rng(8)
    covered = 0
    for seed in range(400):
        low, high = bootstrap(generator.gamma(1, 1, 60), method=method, resamples=1000, seed=seed)
        covered += low <= 1 <= high
    assert covered / 400 >= least


# --- all equal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["percentile", "basic", "bca"])
def test_a_certain_sample_is_not_certain(method: str) -> None:
    perfect, hopeless = bootstrap(np.ones(30), method=method), bootstrap(np.zeros(30), method=method)
    assert tuple(perfect) == pytest.approx((0.884, 1.0), abs=5e-4) and perfect.exactness == "exact"
    assert tuple(hopeless) == pytest.approx((0.0, 0.116), abs=5e-4)
    assert perfect.se == hopeless.se > 0.01
    no_change = bootstrap(np.ones(30), baseline=np.ones(30), method=method)
    assert no_change.low < -0.1 and no_change.high > 0.1
    unknown = bootstrap(np.full(30, 0.7), method=method)
    assert tuple(unknown) == (0.7, 0.7) and "bounds unknown" in unknown.method
    known = bootstrap(np.full(30, 0.7), method=method, value_range=(0, 1))
    assert known.low == pytest.approx(0.7 * 0.884, abs=1e-3) and known.high == pytest.approx(
        0.7 + 0.3 * 0.116, abs=1e-3
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": []}, "must not be empty"),
        ({"values": [1.0, math.nan]}, "values must be finite, got 1 NaN"),
        ({"values": [[1.0]]}, "one-dimensional"),
        ({"values": ["a"]}, "must be numbers"),
        ({"values": [1.0, 2.0], "confidence": 1.0}, "confidence"),
        ({"values": [1.0, 2.0], "method": "t"}, "method must be one of"),
        ({"values": [1.0, 2.0], "statistic": "median"}, "statistic must be 'mean' or a function"),
        ({"values": [1.0, 2.0], "baseline": [1.0]}, "baseline must have one entry per example"),
        ({"values": [1.0, 2.0], "resamples": 1}, "resamples"),
        ({"values": [1.0, 2.0], "clusters": [1]}, "clusters must have one entry"),
        ({"values": [1.0, 2.0], "statistic": lambda x, axis: x.sum(axis) * np.nan}, "must be finite"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        bootstrap(**arguments)
    with pytest.raises(fb.InvalidInputError, match="shape of sums"):
        bootstrap_sums(np.ones((3, 2)), np.sum, baseline=np.ones((3, 1)))
    with pytest.raises(fb.InvalidInputError, match="must be a matrix"):
        bootstrap_sums(np.ones(3), np.sum)
