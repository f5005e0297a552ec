"""taskflow: trains deep networks under any SOAP parallelisation strategy, and finds a fast one by itself.

Importing it starts nothing: no MPI, no GPU, no threads.
"""

__version__ = "0.1.0"
