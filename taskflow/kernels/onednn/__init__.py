"""Convolutions and large matrix products by oneDNN, where it is installed."""
