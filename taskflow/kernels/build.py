"""Instructions for building the compiled kernels where they are missing."""

REBUILD = "install a C compiler and a C++ compiler, then build again in taskflow's folder: pip install --editable ."
