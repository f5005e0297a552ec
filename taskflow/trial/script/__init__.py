"""The code of `try.py`, which `taskflow try` joins into one file; it needs PyTorch alone."""
