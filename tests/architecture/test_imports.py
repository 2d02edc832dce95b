"""The rooms' rules, held by machine."""

import ast
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastbudget

PACKAGE = Path(fastbudget.__file__).parent
ROOT = Path(__file__).parents[2]

# room → the one file in it that may touch the compiled module
NATIVE_DOORS = {"ops", "stats", "metrics", "cost", "training.data"}


def sources():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def test_imports_go_downward_only():
    # The layers are declared in pyproject.toml, so this runs from the source tree.
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the layer contract lies in the source tree's pyproject.toml")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert "1 kept, 0 broken" in found.stdout


def test_only_the_doors_touch_the_compiled_module():
    touching = {}
    for path in sources():
        if any(name.split(".")[-1] == "_C" for name in imported_names(path)):
            room = ".".join(path.relative_to(PACKAGE).parent.parts)
            touching.setdefault(room, set()).add(path.name)
    assert set(touching) <= NATIVE_DOORS
    assert touching["metrics"] == {"_native.py"}
    assert all(len(files) == 1 for files in touching.values()), touching


def modules():
    return sorted(m.name for m in pkgutil.walk_packages([str(PACKAGE)], "fastbudget.") if not m.name.endswith("._C"))


def test_importing_every_submodule_leaves_the_public_names_alone():
    before = {name: getattr(fastbudget, name) for name in fastbudget.__all__ if name != "__version__"}
    imported = []
    for name in modules():
        try:
            imported.append(importlib.import_module(name))
        except fastbudget.MissingExtraError:  # only other people's trainers may be missing
            assert name.startswith("fastbudget.integrations."), name
    for name, value in before.items():
        assert getattr(fastbudget, name) is value, name
    for module in imported:
        name = module.__name__
        for public in getattr(module, "__all__", []):
            value = getattr(module, public)
            is_submodule_of_same_package = inspect.ismodule(value) and name != "fastbudget"
            assert not is_submodule_of_same_package, f"{name}.{public} was replaced by a submodule"


def test_every_public_name_has_a_docstring_and_a_place_in_the_docs():
    documented = (ROOT / "docs" / "api.md").read_text()
    for name in fastbudget.__all__:
        if name == "__version__":
            continue
        value = getattr(fastbudget, name)
        assert inspect.getdoc(value), f"fastbudget.{name} has no docstring"
        assert f"`fb.{name}" in documented, f"fastbudget.{name} is missing in docs/api.md"


def test_unknown_attributes_are_refused_and_dir_lists_public_names():
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        fastbudget.evalute  # noqa: B018
    assert set(fastbudget.__all__) <= set(dir(fastbudget))


def in_fresh_process(code):
    return json.loads(
        subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    )


def test_importing_the_package_loads_nothing_heavy():
    code = "import fastbudget, json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = set(in_fresh_process(code))
    assert not loaded & {"torch", "onnx", "onnxruntime", "ray", "rich", "matplotlib", "sklearn", "scipy", "pydantic"}


def test_importing_the_package_is_quick():
    code = (
        "import json, time; import numpy; start = time.perf_counter(); import fastbudget; "
        "print(json.dumps(time.perf_counter() - start))"
    )
    assert min(in_fresh_process(code) for _ in range(5)) < 0.15


def test_the_compiled_module_links_only_the_c_and_cpp_runtimes():
    from fastbudget import _C

    listed = subprocess.run(["ldd", _C.__file__], capture_output=True, text=True, check=True).stdout
    libraries = {line.split()[0].split("/")[-1].split(".so")[0] for line in listed.splitlines()}
    allowed = {"linux-vdso", "libstdc++", "libgcc_s", "libc", "libm", "ld-linux-x86-64", "libpthread", "libdl", "librt"}
    assert libraries <= allowed
