"""Files of safetensors with a checksum (zlib.crc32) for each array and one for the writer's texts.

The library reads them. We write them, in its format (github.com/huggingface/safetensors): its own writer leaves a ``.tmpXXXXXX``
behind when it is killed, makes a file that only its owner reads, and does not wait for the disk.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np

from taskflow.checkpoint.stored import Array, StoredWeights
from taskflow.reading import parse_json
from taskflow.writing import json_text, replacing

# DirectFile: a file that is written past the system's cache of files (O_DIRECT), where there is that.
# The cache is of no use to a checkpoint, which goes to the disk at once and is hardly ever read. Its pages cost more processor
# time than everything else about a checkpoint: they are found, cleared, filled and given back, while others train.
_PAGE = 4096  # bytes: no device asks for more than that at once
_TOGETHER = 8 << 20  # bytes that are written at once: a disk's speed is reached long before
_DIRECT = getattr(os, "O_DIRECT", 0)  # only Linux has it


class DirectFile:
    """File ``path``, which must be there and empty, to be written from its begin to its end. A context manager. All of its methods
    raise OSError; where the file system (one in memory, say) does not write directly, it is written as any other file."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY)
        self._direct = _made_direct(self._file)
        self._room = mmap.mmap(-1, _TOGETHER)  # begins at a page, as a direct write must
        self._used = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; a part of them stays here until there are enough, or the file is closed."""
        rest = memoryview(data)
        while rest:
            count = min(len(rest), _TOGETHER - self._used)
            self._room[self._used : self._used + count] = rest[:count]
            self._used, rest = self._used + count, rest[count:]
            if self._used == _TOGETHER:
                self._flush()

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what is left, unless an error ends the block."""
        try:
            if kind is None:
                self._flush()
        finally:
            os.close(self._file)
            self._room.close()

    def _flush(self) -> None:
        """Write all that is here; the end of a file is seldom a whole page."""
        with memoryview(self._room) as room:
            whole = self._used // _PAGE * _PAGE if self._direct else 0
            done = 0
            if whole:
                try:
                    done = os.write(self._file, room[:whole])
                except OSError as failure:
                    if failure.errno != errno.EINVAL:  # it says so of a file system that took O_DIRECT and cannot do it
                        raise
            if self._direct and done < self._used:
                self._buffered()
            while done < self._used:
                done += os.write(self._file, room[done : self._used])
        self._used = 0

    def _buffered(self) -> None:
        """From here on as any other file: after the last whole page, and after a part that did not go to the disk."""
        fcntl.fcntl(self._file, fcntl.F_SETFL, fcntl.fcntl(self._file, fcntl.F_GETFL) & ~_DIRECT)
        self._direct = False


def _made_direct(file: int) -> bool:
    """Let an open file be written directly; False if it is none of a disk (a pipe would be cut into packets) or cannot be."""
    if not _DIRECT or not stat.S_ISREG(os.fstat(file).st_mode):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | _DIRECT)
    except OSError:
        return False
    return True


SUMS = "taskflow-crc32"  # of the metadata: the checksums by name; that of the other metadata by the name ""
_MEND = "restore the file from a copy, or use an older one"


def write_safetensors(path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write arrays by name. The file appears complete, and on the disk, or not at all. Raises OSError."""
    plain = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    sums = {name: _sum(name, value.dtype.name, value.shape, value) for name, value in plain.items()}
    texts = {**metadata, SUMS: json_text({"": _sum_of_texts(metadata), **sums})}
    header: dict[str, Any] = {"__metadata__": texts}
    end = 0
    for name, value in sorted(plain.items(), key=lambda one: (-one[1].itemsize, one[0])):  # so that each lies aligned
        header[name] = {"dtype": _type(value.dtype), "shape": value.shape, "data_offsets": (end, end + value.nbytes)}
        end += value.nbytes
    "".join([*plain, *texts, *texts.values()]).encode()  # the format has no half of a surrogate pair: ValueError
    head = json_text(header, packed=True).encode()
    head = head.ljust(-(-len(head) // 8) * 8)
    with replacing(path) as fresh, DirectFile(fresh) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in list(header)[1:]:
            file.write(plain[name].reshape(-1).view(np.uint8).data)


def read_safetensors(path: Path) -> StoredWeights:
    """Return the arrays of a file by name. An array that has a checksum is compared with it when it is first read. Raises
    ImportError without safetensors, and ValueError for another kind of file or a damaged one; so does the reading of an
    array."""
    library = need_safetensors()
    try:
        file = library.safe_open(str(path), framework="numpy")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except library.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or a part of one ({error}); a state_dict must be named .pth") from error
    metadata = file.metadata() or {}
    sums = _sums(path, metadata, shapes)
    return StoredWeights(str(path), shapes, partial(_checked, path, file, sums), metadata, SUMS in metadata)


def need_safetensors() -> Any:
    """Return the library. Raises ImportError that says how to get it."""
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("weights files need safetensors: pip install 'soap-taskflow[weights]'") from error
    return safetensors


def _sums(path: Path, metadata: dict[str, str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The checksums that are still to be compared, by array; ValueError if metadata or names are not those that were written."""
    if SUMS not in metadata:
        return {}
    sums = parse_json(metadata[SUMS], f"{path}: damaged: its checksums")
    texts = {name: text for name, text in metadata.items() if name != SUMS}
    if not isinstance(sums, dict) or sums.pop("", None) != _sum_of_texts(texts):
        raise ValueError(f"{path}: damaged: its metadata (step, seed, position) do not have the checksum they had; {_MEND}")
    if different := sorted(sums.keys() ^ shapes.keys()):
        what = "was written, but is not there" if different[0] in sums else "was not written, but is there"
        raise ValueError(f"{path}: damaged: array {different[0]} {what}; {_MEND}")
    return sums


def _checked(path: Path, file: Any, sums: dict[str, str], name: str) -> Array:
    """An array of a file, compared with its checksum the first time; of bfloat16, which the library does not give to numpy, in
    float32."""
    kind = file.get_slice(name).get_dtype()
    value = np.asarray(_bits16(path, name) if kind == "BF16" else file.get_tensor(name), order="C")
    stored = "bfloat16" if kind == "BF16" else value.dtype.name
    if name in sums and (found := _sum(name, stored, value.shape, value)) != sums[name]:
        raise ValueError(f"{path}: damaged: array {name} has checksum {found}, but {sums[name]} was written; {_MEND}")
    sums.pop(name, None)
    return (value.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else value  # the upper half of a float32


def _type(dtype: np.dtype[Any]) -> str:
    if dtype.name in ("bfloat16", "bool"):
        return {"bfloat16": "BF16", "bool": "BOOL"}[dtype.name]
    return f"{dtype.kind.upper()}{8 * dtype.itemsize}"


def _bits16(path: Path, name: str) -> Array:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(length))[name]
        first, last = entry["data_offsets"]
        stream.seek(8 + length + first)
        return np.frombuffer(stream.read(last - first), np.uint16).reshape(entry["shape"])


def _sum(name: str, kind: str, shape: tuple[int, ...], value: Array) -> str:
    """Of name, type, shape and elements, so that an array is not taken for another one."""
    about = f"{name} {kind} {list(shape)}".encode()
    return f"{crc32(value.reshape(-1).view(np.uint8).data, crc32(about)):08x}"


def _sum_of_texts(metadata: Mapping[str, str]) -> str:
    return f"{crc32(json_text(sorted(metadata.items())).encode()):08x}"
