"""Kernels as compiled loops: a group is a class in a ``.pyx`` file, which checks arguments and calls ``loops/``.

A header of ``loops/`` has the arithmetic, with the choice of its type; the compiler makes it for several instruction sets.
"""
