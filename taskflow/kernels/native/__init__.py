"""Kernels as compiled loops.

A ``.pyx`` file checks arguments; ``dispatch/`` chooses the type and the instruction set; ``loops/`` has the arithmetic.
"""
