"""Arrays that behave as CuPy's do towards numpy: nothing crosses from one to the other unless it is asked to.

Their memory is the host's, so what runs on them can be compared; what a GPU would refuse, they refuse: numpy arrays beside
theirs in one operation, numpy's functions that would convert them, numbers of numpy's where an array () comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

FUNCTIONS = {  # of numpy, that CuPy has too and the runtime or the operators call
    "empty", "zeros", "ones", "full", "arange", "asarray", "ascontiguousarray", "empty_like", "zeros_like", "ones_like", "where",
    "copyto", "repeat",
    "moveaxis", "stack", "broadcast_arrays", "broadcast_to", "count_nonzero", "may_share_memory", "maximum", "minimum",
    "sqrt", "matmul", "add", "subtract", "multiply", "divide", "sort", "argmax", "cumsum", "flip", "floor", "rint",
    "fft", "ifft",
}
OF_WAVES = ("fft", "ifft")  # in a module of their own


class Tape:
    """What has been asked for while it is being recorded: as on a GPU, nothing of it is done then, and nothing can be read."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] | None = None

    def note(self, action: Callable[[], object]) -> bool:
        """True if the action is to be done later."""
        if self.actions is not None:
            self.actions.append(action)
        return self.actions is not None

    def made(self, compute: Callable[[], Any], result: Any, given: Any) -> Any:
        """A result whose values come later, unless it shares the memory of what it was made of."""
        if self.actions is not None:
            for array in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(array, np.ndarray) and not any(np.may_share_memory(array, one) for one in _arrays(given)):
                    assert not isinstance(result, (tuple, list)), "more than one new array"
                    new = array.copy()
                    self.actions.append(partial(self._fill, new, compute))
                    return new
        return result

    @staticmethod
    def _fill(array: np.ndarray, compute: Callable[[], Any]) -> None:
        array[...] = compute()

    def read(self, what: str) -> None:
        """RuntimeError while something is being recorded."""
        if self.actions is not None:
            raise RuntimeError(f"{what} while a step is being recorded")


TAPE = Tape()


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [a for one in value for a in _arrays(one)] if isinstance(value, (tuple, list)) else []


class Pointer:
    """Where an array lies, as CuPy's `MemoryPointer` says it."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that numpy cannot take for one of its own."""

    __slots__ = ("host",)

    def __init__(self, host: np.ndarray) -> None:
        self.host = host

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("implicit conversion of a device's array to numpy is not allowed; copy it with to_host")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or (ufunc.signature is not None and ufunc is not np.matmul):
            raise TypeError(f"{ufunc.__name__}.{method} is not for device arrays")
        if "out" in options:
            (out,) = options["out"]
            given, rest = _open(inputs), {k: _open(v) for k, v in options.items() if k != "out"}
            if not TAPE.note(lambda: ufunc(*given, out=(_open(out),), **rest)):
                ufunc(*given, out=(_open(out),), **rest)
            return out
        return _made(lambda: ufunc(*_open(inputs), **_open(options)), inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return getattr(xp, function.__name__)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "size", "ndim", "nbytes", "strides", "flags", "itemsize"):
            return getattr(self.host, name)
        if name == "data":
            return Pointer(self.host.ctypes.data)
        if name in ("T", "real", "imag"):
            return DeviceArray(getattr(self.host, name))
        if name in ("astype", "reshape", "view", "sum", "max", "min", "mean", "all", "any", "copy", "swapaxes", "transpose"):
            return lambda *args, **options: _made(
                lambda: getattr(self.host, name)(*_open(args), **_open(options)), (self, args, options)
            )
        if name in ("fill", "sort"):
            return lambda *args: None if TAPE.note(lambda: getattr(self.host, name)(*args)) else getattr(self.host, name)(*args)
        raise AttributeError(f"device arrays have no {name}")

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        return (DeviceArray(part) if isinstance(part, np.ndarray) else _wrap(part) for part in self.host)

    def __getitem__(self, index: Any) -> DeviceArray:
        return _made(lambda: self.host[_open(index)], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        where, given = _open(index), _open(value)
        if not TAPE.note(lambda: self.host.__setitem__(where, given)):
            self.host[where] = given

    def __float__(self) -> float:
        TAPE.read("float")
        return float(self.host)

    def __int__(self) -> int:
        TAPE.read("int")
        return int(self.host)

    def __bool__(self) -> bool:
        TAPE.read("bool")
        return bool(self.host)


def _open(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError(f"a numpy array {value.dtype}{value.shape} beside a device's array: upload it first")
    if isinstance(value, (tuple, list)):
        if any(isinstance(one, DeviceArray) for one in value) and not isinstance(value, tuple):
            raise TypeError("a list of device arrays is no device array")
        return type(value)(_open(one) for one in value)
    if isinstance(value, dict):
        return {key: _open(one) for key, one in value.items()}
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_wrap(one) for one in value)
    return DeviceArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def _made(compute: Callable[[], Any], given: Any) -> Any:
    """What a function makes of ``given``: now, or, while it is being recorded, its shape now and its values later."""
    with np.errstate(all="ignore" if TAPE.actions is not None else None):
        return _wrap(TAPE.made(lambda: np.asarray(compute()), _numeric(compute()), _open_all(given)))


def _numeric(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _open_all(value: Any) -> Any:
    """As `_open`, of anything."""
    if isinstance(value, DeviceArray):
        return value.host
    if isinstance(value, (tuple, list)):
        return tuple(_open_all(one) for one in value)
    return tuple(_open_all(one) for one in value.values()) if isinstance(value, dict) else value


class Module:
    """The array module."""

    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(f"the strict array module has no {name}; see FUNCTIONS")

        def function(*args: Any, **options: Any) -> Any:
            out = options.get("out")

            def compute() -> Any:
                return getattr(np.fft if name in OF_WAVES else np, name)(*_open(args), **_open(options))

            if out is not None or name == "copyto":
                if not TAPE.note(compute):
                    compute()
                return out
            return _wrap(compute()) if name.startswith("empty") else _made(compute, (args, options))

        return function


xp = Module()
