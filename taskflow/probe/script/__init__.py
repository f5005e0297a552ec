"""The probe's own code, which `taskflow probe` joins into one file; it needs PyTorch alone."""
