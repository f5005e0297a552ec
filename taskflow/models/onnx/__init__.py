"""ONNX: networks from its files, and plans as its device configurations."""

from taskflow.models.onnx.importer import from_onnx
from taskflow.models.onnx.plan import config_of, export_onnx, read_onnx_plan, specs_of

__all__ = ["config_of", "export_onnx", "from_onnx", "read_onnx_plan", "specs_of"]
