import json
import re

import pytest

from fastbudget.report import write_report
from fastbudget.report.line_chart import downsample, line_chart, log_ticks, nice_ticks

EMPTY = {"name": "r", "run_dir": "r", "started_at": "now", "messages": []}


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(0.031, 0.049) == pytest.approx([0.035, 0.04, 0.045])
    assert nice_ticks(3, 3) == [3]


def test_log_ticks_are_round_and_inside():
    assert log_ticks(0.003, 3.0) == pytest.approx([0.01, 0.1, 1.0])
    assert log_ticks(1.5, 80.0) == pytest.approx([2, 5, 10, 20, 50])


def test_a_wide_loss_gets_a_log_axis_and_says_so():
    wide = [(float(x), 10.0**-x) for x in range(4)]
    assert "loss (log scale)" in line_chart(wide, title="t", x_label="x", y_label="loss", log_if_wide=True)
    with_zero = [*wide, (4.0, 0.0)]
    assert "log scale" not in line_chart(with_zero, title="t", x_label="x", y_label="loss", log_if_wide=True)


def test_downsampling_keeps_spikes_and_order():
    points = [(float(x), 0.0) for x in range(200_000)]
    points[123_456] = (123_456.0, 9.0)
    kept = downsample(points)
    assert len(kept) <= 610
    assert (123_456.0, 9.0) in kept
    assert kept == sorted(kept)


def test_a_chart_without_values_says_so():
    assert "No values were recorded" in line_chart([], title="t", x_label="x", y_label="y")
    assert "No values" in line_chart([(1, float("nan"))], title="t", x_label="x", y_label="y")


def test_a_chart_of_one_point_and_of_a_constant_has_finite_coordinates():
    for points in ([(1.0, 2.0)], [(0.0, 5.0), (1.0, 5.0)], [(0.0, 0.0), (1.0, 0.0)]):
        chart = line_chart(points, title="t", x_label="x", y_label="y", markers=True)
        assert "nan" not in chart and "inf" not in chart


def test_a_report_of_a_run_that_reached_nothing_names_what_is_missing(tmp_path):
    page = write_report(tmp_path, EMPTY).read_text()
    for text in ("ended before a plan", "only in ledger.jsonl", "No final evaluation", "Nothing was exported"):
        assert text in page


def test_names_are_escaped_and_nothing_is_fetched(tmp_path):
    record = EMPTY | {"name": "<script>alert(1)</script>", "messages": ["<img src=x onerror=alert(1)>"]}
    page = write_report(tmp_path, record).read_text()
    assert "<script" not in page and "<img" not in page
    assert not re.search(r'(src|href)="?https?://', page)


def test_half_written_and_foreign_lines_are_left_out_and_counted(tmp_path):
    lines = [json.dumps({"step": s, "loss": 1 / s, "lr": 0.1}) for s in range(1, 50)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n[1]\n{"step": 50, "lo')
    page = write_report(tmp_path, EMPTY).read_text()
    assert "2 lines of metrics.jsonl could not be read" in page
    assert page.count("<polyline") == 2


def test_a_resumed_run_shows_each_step_once(tmp_path):
    lines = [{"step": 1, "loss": 9.0}, {"step": 2, "loss": 8.0}, {"step": 2, "loss": 7.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report(tmp_path, EMPTY).read_text()
    points = re.search(r'points="([^"]*)"', page)[1].split()
    assert len(points) == 2


def test_a_memory_timeline_becomes_a_picture_where_matplotlib_is_installed(tmp_path):
    import numpy as np

    from fastbudget.report import write_memory_timeline

    pytest.importorskip("matplotlib")
    bytes_by_category = np.cumsum(np.full((2, 3000), 2**20), axis=1)
    write_memory_timeline(tmp_path / "m.png", ["a", "b"], bytes_by_category, ["init"], np.zeros(3000, int), "title")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_a_long_memory_timeline_keeps_its_peak(tmp_path):
    import numpy as np

    from fastbudget.report import write_memory_timeline

    alive = np.ones((1, 100_000), np.int64)
    alive[0, 54_321] = 7 * 2**30
    write_memory_timeline(tmp_path / "m.html", ["a"], alive, ["init"], np.zeros(100_000, int), "<b>title</b>")
    page = (tmp_path / "m.html").read_text()
    assert "Peak 7.00 GiB" in page and "<b>title" not in page and len(page) < 200_000
