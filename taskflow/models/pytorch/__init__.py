"""Networks written for PyTorch, as operator graphs: to plan their training here, and to train them with their weights.

    graph = taskflow.from_torch(torchvision.models.resnet50(), (512, 3, 224, 224))
    found = taskflow.search(graph, taskflow.load_machine("h100", 16), budget="30s")
"""

from typing import TYPE_CHECKING

from taskflow.lazy import lazily
from taskflow.models.pytorch.importer import from_torch
from taskflow.models.pytorch.meta import NumbersWantedError, on_meta, quietly
from taskflow.models.pytorch.origin import OperatorSite, Origin, graph_around, origin_of, require_origin, sites_of
from taskflow.models.pytorch.places import place_text, raising_line
from taskflow.models.pytorch.weights import weights_of

if TYPE_CHECKING:
    from taskflow.models.pytorch.trial import no_dropout, random_copy

__all__ = [
    "NumbersWantedError", "OperatorSite", "Origin", "from_torch", "graph_around", "no_dropout", "on_meta", "origin_of",
    "place_text", "quietly", "raising_line", "random_copy", "require_origin", "sites_of", "weights_of",
]
__getattr__ = lazily(__name__, {"taskflow.models.pytorch.trial": ("no_dropout", "random_copy")})  # which need PyTorch
