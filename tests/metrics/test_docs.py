"""The guides' Python blocks run as they stand, and the tables name every metric."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastbudget as fb

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guide", ["metrics.md", "add-a-metric.md"])
def test_the_blocks_of_a_guide_run(guide):
    text = (ROOT / "docs" / guide).read_text()
    code = "\n".join(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)).replace(", …]", "]")
    code += "\nimport fastbudget as fb\nassert fb.metrics.get('f1_macro')([2, 1, 0, 1], [2, 1, 0, 0]) > 0.77\n"
    if guide == "add-a-metric.md":
        code += "assert fb.metrics.get('same_length')(['ab', 'c'], ['cd', 'xy']) == 0.5\n"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_the_guide_names_every_metric():
    text = (ROOT / "docs" / "metrics.md").read_text()
    averages = ("_binary", "_micro", "_macro", "_weighted", "_samples")
    for name in fb.metrics.list():
        base = next((name.removesuffix(a) for a in averages if name.endswith(a)), name)
        assert f"`{base}`" in text or base in ("rouge2", "rouge3"), name
