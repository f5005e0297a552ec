"""Pictures: their sources, their decoding, and their batches."""

from taskflow.training.data.images.batches import ImageBatches
from taskflow.training.data.images.sources import ImageSource, digits, image_folder

__all__ = ["ImageBatches", "ImageSource", "digits", "image_folder"]
