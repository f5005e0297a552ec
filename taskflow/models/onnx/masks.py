"""Handlers of ONNX operators of truth values."""
