"""Files of exported programs (``torch.export.save``), and the reasons why torch.export refuses a module."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.export import ExportedProgram

from taskflow.models.pytorch.exported.module import exported_module
from taskflow.models.pytorch.places import place_text, raising_line

_EXPORT = os.path.join(os.path.dirname(torch.__file__), "export") + os.sep


def load_exported(file: str | Path) -> ExportedProgram:
    """Return the program in a file that torch.export.save wrote. Raises FileNotFoundError, and ValueError if the file holds no
    program or one of another version of PyTorch."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"from_torch: there is no file {file}")
    try:  # their import registers the classes in which Hugging Face's programs return results; without it, they cannot be read
        import transformers
        import transformers.modeling_outputs  # noqa: F401
    except ImportError:
        pass
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.ERROR)  # of a file that is none it first warns with two tracebacks
    try:
        with open(file, "rb") as stream:  # torch takes no name that is not UTF-8
            return torch.export.load(stream)
    except Exception as error:  # whatever torch meets there
        why = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"from_torch: PyTorch {torch.__version__} reads no exported program from {file} ({type(error).__name__}: {why}); write "
            "it with torch.export.save, by the same version of PyTorch"
        ) from error
    finally:
        log.setLevel(level)


def examples_of_batch(exported: ExportedProgram, batch: int | None) -> dict[str, torch.Tensor]:
    """Return a program's example inputs by name, with this many samples if it leaves their number open. None keeps its own
    number."""
    module = exported_module(exported)
    found = {}
    for name, example in module.examples_.items():
        sizes = module.inputs_[name]
        count = batch if batch is not None and sizes and sizes[0] is None else None
        found[name] = example if count is None else torch.empty((count, *example.shape[1:]), dtype=example.dtype, device="meta")
    counts = {example.shape[0] for example in found.values() if example.ndim}
    if batch is not None and batch not in counts:
        raise ValueError(
            f"from_torch: the program was exported for a batch of {', '.join(map(str, sorted(counts)))}, not {batch}; leave "
            '--batch out, or export it with dynamic_shapes={"x": {0: torch.export.Dim("batch")}, ...}'
        )
    return found


def why_not_exported(error: BaseException) -> str | None:
    """Return why torch.export refused a module, in one sentence with the line of the module's code; None for any other error."""
    trace: TracebackType | None = error.__traceback__
    inside = False
    while trace is not None and not inside:
        inside = trace.tb_frame.f_code.co_filename.startswith(_EXPORT)
        trace = trace.tb_next
    if not inside:
        return None
    cause: Any = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    kind, text = type(error).__name__, (str(error).strip().splitlines() or [""])[0]
    line = place_text(raising_line(cause.__traceback__)) or place_text(raising_line(error.__traceback__))
    if "DataDependent" in kind or "data-dependent" in str(error).lower():
        return f"torch.export refuses control flow that depends on numbers in tensors{line}"
    return f"torch.export refuses it{line}: {kind}: {text}"
