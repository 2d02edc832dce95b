"""A thin bridge: setuptools asks, CMake builds `fastbudget._C`. Everything else is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def _usable(cache: Path) -> bool:
    """Whether the tools of an earlier build are still there: pip's isolated environments vanish with their ninja."""
    if not cache.exists():
        return False
    entries = dict(line.split("=", 1) for line in cache.read_text().splitlines() if ":" in line and "=" in line)
    tools = ("CMAKE_COMMAND:INTERNAL", "CMAKE_MAKE_PROGRAM:FILEPATH", "pybind11_DIR:UNINITIALIZED", "pybind11_DIR:PATH")
    return all(Path(entries[tool]).exists() for tool in tools if tool in entries)


class FreshBuild(build):
    def run(self) -> None:
        # Python files deleted since the last build would be shipped with the new one.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        # One build directory per interpreter: a second build only compiles what changed.
        build_dir = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            f"-DCMAKE_BUILD_TYPE={os.environ.get('FASTBUDGET_BUILD_TYPE', 'Release')}",
            f"-DFASTBUDGET_MODULE_DIR={target.parent}",
            f"-DFASTBUDGET_MODULE_SUFFIX={target.name.removeprefix('_C')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]  # fmt: skip
        options = ("FASTBUDGET_CUDA", "FASTBUDGET_CUDA_ARCHITECTURES")
        configure += [f"-D{option}={os.environ[option]}" for option in options if option in os.environ]
        if not _usable(build_dir / "CMakeCache.txt"):
            configure.append("--fresh")
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build_dir)], check=True)


setup(ext_modules=[Extension("fastbudget._C", sources=[])], cmdclass={"build": FreshBuild, "build_ext": CMakeBuild})
