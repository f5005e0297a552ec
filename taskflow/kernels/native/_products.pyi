"""The compiled twin of kernels/definitions/products.py: its methods have the definition's types."""

from taskflow.kernels.definitions import ProductKernels

class NativeProducts(ProductKernels): ...

def use_blas(sgemm: int, dgemm: int, wide: bool) -> None: ...
