"""A thin bridge: setuptools asks, CMake builds `fastbudget._C`. Everything else is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


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
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build_dir)], check=True)


setup(ext_modules=[Extension("fastbudget._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
