"""Arrays that behave as CuPy's do towards numpy: nothing crosses from one to the other unless it is asked to.

Their memory is the host's, so what runs on them can be compared; what a GPU would refuse, they refuse: numpy arrays beside
theirs in one operation, numpy's functions that would convert them, numbers of numpy's where an array () comes back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FUNCTIONS = {  # of numpy, that CuPy has too and the runtime or the operators call
    "empty", "zeros", "ones", "full", "arange", "asarray", "ascontiguousarray", "empty_like", "zeros_like", "where", "copyto",
    "moveaxis", "stack", "broadcast_arrays", "broadcast_to", "count_nonzero", "may_share_memory", "maximum", "minimum",
    "sqrt", "matmul", "add", "subtract", "multiply", "divide", "sort",
}


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
            ufunc(*_open(inputs), out=(_open(out),), **{k: _open(v) for k, v in options.items() if k != "out"})
            return out
        return _wrap(ufunc(*_open(inputs), **_open(options)))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return getattr(xp, function.__name__)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "size", "ndim", "nbytes", "strides", "flags", "itemsize"):
            return getattr(self.host, name)
        if name == "T":
            return DeviceArray(self.host.T)
        if name in ("astype", "reshape", "view", "sum", "max", "min", "mean", "all", "any", "copy", "swapaxes", "transpose"):
            return lambda *args, **options: _wrap(getattr(self.host, name)(*_open(args), **_open(options)))
        if name in ("fill", "sort"):
            return lambda *args: getattr(self.host, name)(*args)
        raise AttributeError(f"device arrays have no {name}")

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        return (DeviceArray(part) if isinstance(part, np.ndarray) else _wrap(part) for part in self.host)

    def __getitem__(self, index: Any) -> DeviceArray:
        return _wrap(self.host[_open(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[_open(index)] = _open(value)

    def __float__(self) -> float:
        return float(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __bool__(self) -> bool:
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


class Module:
    """The array module."""

    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(f"the strict array module has no {name}; see FUNCTIONS")

        def function(*args: Any, **options: Any) -> Any:
            out = options.get("out")
            result = getattr(np, name)(*_open(args), **_open(options))
            return out if out is not None else _wrap(result)

        return function


xp = Module()
