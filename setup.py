"""Builds the Cython extensions; everything else is declared in pyproject.toml.

The extensions are portable by default. ``TASKFLOW_NATIVE=1`` compiles for this machine's instruction set.
A missing compiler is not an error: every extension has a numpy twin, and ``taskflow`` falls back to it.
"""

import os
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


EXTENSIONS = cythonize(
    [extension(path) for path in sorted(Path("taskflow").rglob("*.pyx"))],
    compiler_directives={
        "language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False,
    },
)
for module in EXTENSIONS:
    module.optional = True  # here, not above: cythonize makes new extensions and drops what it does not know

setup(ext_modules=EXTENSIONS)
