"""Convolutions and large matrix products by oneDNN, where oneDNN is installed."""
