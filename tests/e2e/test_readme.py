"""README and examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_python(code_or_path, cwd):
    return subprocess.run([sys.executable, "-P", *code_or_path], cwd=cwd, capture_output=True, text=True, timeout=200)


def test_the_python_taste_in_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = run_python(["-c", block], tmp_path)
        assert done.returncode == 0, done.stderr
        assert "(5, 10)" in done.stdout


def test_the_python_in_the_guides_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "estimate.md").read_text(), re.DOTALL)
    printed = ""
    for block in blocks:
        done = run_python(["-c", block], tmp_path)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    assert "8393728" in printed and " yes" in printed and "GiB reserved" in printed
    assert "restarts " in printed and "USD per device-hour" in printed


def test_the_python_in_the_guide_to_plans_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plan.md").read_text(), re.DOTALL)
    sizes = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}'
    (tmp_path / "ds_config.json").write_text(sizes)
    done = run_python(["-c", "\n".join(blocks)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is the cheapest that fits" in done.stdout and done.stdout.rstrip().endswith("no ()")


def test_the_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "pip install . && fastbudget run digits" in text
    assert "pip install '.[test]' && pytest" in text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("compare_checkpoints.py", "the candidate is the baseline"),
        *((path.name, "stopped by budget") for path in sorted((ROOT / "examples").glob("own_*.py"))),
    ],
)
def test_example_scripts_run(tmp_path, script, said):
    done = run_python([str(ROOT / "examples" / script)], tmp_path)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skipped"):
        pytest.skip(done.stdout.strip())
    assert said in done.stdout


def test_relative_links_in_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
