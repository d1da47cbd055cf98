"""Builds the compiled twins: every `src/fairlead/**/_*.pyx` becomes the module of its dotted name.

All of them are optional. Where there is no C compiler the install still succeeds, the plain-Python
twins do the work, and a warning says so; everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
ADVICE = """
******************************************************************************
* Fairlead is being installed WITHOUT its compiled modules:
*   {reason}
* It will run on the plain-Python twins: correct, and many times slower.
* To get the fast ones, install a C compiler (Debian: `apt install gcc
* python3-dev`) and install Fairlead again.
******************************************************************************
"""


class BuildOrWarn(build_ext):
    """build_ext that says once, loudly, what could not be compiled, instead of failing the install."""

    def finalize_options(self) -> None:
        # Only here, and not above, is C made of the sources: asking for metadata should not cost that.
        if any(source.endswith(".pyx") for ext in self.distribution.ext_modules or () for source in ext.sources):
            from Cython.Build import cythonize

            directives = {"language_level": 3, "embedsignature": True}
            self.distribution.ext_modules = cythonize(
                self.distribution.ext_modules, include_path=[str(SOURCE)], compiler_directives=directives
            )
        super().finalize_options()

    def run(self) -> None:
        self.failed: list[str] = []
        super().run()

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            if os.environ.get("FAIRLEAD_REQUIRE_COMPILED"):
                raise
            if not self.failed:
                print(ADVICE.format(reason=f"{str(error).strip()[:70]}…"), file=sys.stderr, flush=True)
            self.failed.append(ext.name)

    def copy_extensions_to_source(self) -> None:
        everything = self.extensions
        self.extensions = [ext for ext in everything if ext.name not in self.failed]
        try:
            super().copy_extensions_to_source()
        finally:
            self.extensions = everything


def extensions() -> list[Extension]:
    if os.environ.get("FAIRLEAD_PURE", "") not in ("", "0"):
        return []
    return [
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [str(path)],
            extra_compile_args=["-O3", "-Wno-sign-compare"] if os.name == "posix" else [],
        )
        for path in sorted(SOURCE.glob("fairlead/**/_*.pyx"))
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrWarn})
