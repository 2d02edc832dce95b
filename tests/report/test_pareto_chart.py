import importlib.util
import xml.etree.ElementTree as ElementTree

import pytest

from fastbudget import InvalidInputError, MissingExtraError
from fastbudget.report import front_table, write_pareto_chart


def candidate(hours, cost, rank=0, fits="yes", hardware="h100-sxm"):
    interval = {"low": 0.8, "mid": 1.0, "high": 1.3}
    return {
        "summary": f"<8> x {hardware}",
        "layout_words": "DP 8, micro-batch 1, bf16-mixed",
        "layout": {"precision": "bf16-mixed"},
        "hardware": hardware,
        "num_devices": 8,
        "rank": rank,
        "fits": fits,
        "usd": {name: value * cost for name, value in interval.items()},
        "wall_hours": {name: value * hours for name, value in interval.items()},
        "mfu": interval,
        "memory": {"device_bytes": 66 * 2**30, "capacity_bytes": 80 * 2**30},
    }


def plan(*candidates):
    return {
        "candidates": list(candidates),
        "cost_axis": "usd",
        "limits": {"usd": 5000.0, "deadline_hours": 100.0},
        "why_best": "a <b> & c",
        "next_constraint": "memory",
    }


PLAN = plan(
    candidate(90, 1000), candidate(10, 2000), candidate(50, 3000, 1, hardware="a100"), candidate(5, 900, 2, "at risk")
)


def test_an_svg_is_xml_with_every_candidate_and_both_limits(tmp_path):
    write_pareto_chart(tmp_path / "front.svg", PLAN)
    root = ElementTree.parse(tmp_path / "front.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}circle/{name}title")) == 4
    assert len(root.findall(f"{name}line[@class='limit']")) == 2
    assert [one.get("fill") for one in root.findall(f"{name}circle") if one.get("fill") == "none"] == ["none"]
    # The cheaper of the front's two is lower, the faster further left.
    places = {
        one.find(f"{name}title").text.split(": ")[1].split(" USD")[0]: (float(one.get("cx")), float(one.get("cy")))
        for one in root.findall(f"{name}circle")
        if one.find(f"{name}title") is not None
    }
    assert places["1,000"][0] > places["2,000"][0] and places["1,000"][1] > places["2,000"][1]


def test_a_page_needs_no_network_and_escapes_names(tmp_path):
    write_pareto_chart(tmp_path / "front.html", PLAN)
    page = (tmp_path / "front.html").read_text()
    assert "a &lt;b&gt; &amp; c" in page and "&lt;8&gt; x h100-sxm" in page
    assert "http" not in page and "<script" not in page


def test_one_candidate_and_no_limits(tmp_path):
    write_pareto_chart(tmp_path / "one.svg", plan(candidate(10, 1000)) | {"limits": {}})
    assert ElementTree.parse(tmp_path / "one.svg").getroot() is not None


def test_other_suffixes_places_and_empty_plans_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"\.svg, \.png or \.html"):
        write_pareto_chart(tmp_path / "front.gif", PLAN)
    with pytest.raises(InvalidInputError, match="does not exist"):
        write_pareto_chart(tmp_path / "gone" / "front.svg", PLAN)
    with pytest.raises(InvalidInputError, match="Nothing fits"):
        write_pareto_chart(tmp_path / "front.svg", plan())


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_a_png_names_what_it_needs(tmp_path):
    with pytest.raises(MissingExtraError, match="pip install matplotlib"):
        write_pareto_chart(tmp_path / "front.png", PLAN)


def test_a_png_is_drawn_where_matplotlib_is_installed(tmp_path):
    pytest.importorskip("matplotlib")
    write_pareto_chart(tmp_path / "front.png", PLAN)
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_marks_the_front_and_shortens_numbers():
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(front_table(PLAN))
    text = console.export_text()
    assert text.count("* ") >= 2 and "1k (800-1.3k)" in text and "66/80" in text and "at risk" in text
    assert "bf16-mixed" not in text  # the same everywhere
