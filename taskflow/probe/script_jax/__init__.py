"""The code of the probe for JAX, which `taskflow probe --for jax` joins into one file; it needs JAX alone."""
