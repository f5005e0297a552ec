"""Builds the Cython extensions; everything else is declared in pyproject.toml.

The extensions are portable by default. ``TASKFLOW_NATIVE=1`` compiles for this machine's instruction set.
A missing compiler is not an error: every extension has a numpy twin, and ``taskflow`` falls back to it.

README.md is the package's description. Its links to files of the sources lead nowhere on a package index. With
``TASKFLOW_SOURCES`` (the address of a repository at the version's tag, such as ``https://example.org/taskflow/blob/v1.0``) they
become addresses; without, they are replaced by their text and the file's name, which the source distribution has.
"""

import os
import re
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

FLAGS = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-Wno-unused-function"]
MACROS = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]
if os.environ.get("TASKFLOW_NATIVE") == "1":
    FLAGS.append("-march=native")
    MACROS.append(("TASKFLOW_NO_CLONES", "1"))


def extension(path: Path) -> Extension:
    room = Path(*path.parts[:2])  # headers are named from here: "evaluate/lowering/lower.h"
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=[numpy.get_include(), str(room)],
        define_macros=MACROS,
        depends=sorted(map(str, room.rglob("*.h"))),
        extra_compile_args=FLAGS,
    )


SOURCES = [] if "sdist" in sys.argv else sorted(Path("taskflow").rglob("*.pyx"))  # nothing is compiled for sources alone
EXTENSIONS = cythonize(
    [extension(path) for path in SOURCES],
    compiler_directives={
        "language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False,
    },
)
for module in EXTENSIONS:
    module.optional = True  # here, not above: cythonize makes new extensions and drops what it does not know



def description(text: str, sources: str | None) -> str:
    """``text`` (Markdown) with links that work outside of the sources."""
    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        if sources and target[0] == "#":
            return found[0]
        if sources:
            return f"{image}[{words}]({sources.rstrip('/')}/{target})"
        return f"({words})" if image else f"{words} (`{target.partition('#')[0]}`)" if target[0] != "#" else words

    return re.sub(r"(!?)\[([^\]]+)\]\((?!\w+:)([^)]+)\)", link, text)


setup(
    ext_modules=EXTENSIONS,
    long_description=description(Path("README.md").read_text("utf-8"), os.environ.get("TASKFLOW_SOURCES")),
    long_description_content_type="text/markdown",
)
