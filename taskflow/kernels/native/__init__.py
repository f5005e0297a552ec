"""Kernels as compiled loops. Each group is a class in a ``.pyx`` file, which checks arguments and calls ``loops/``.

The headers of ``loops/`` have the arithmetic and choose its type; the compiler builds it for several instruction sets.
"""
