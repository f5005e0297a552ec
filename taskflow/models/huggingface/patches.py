"""Towers that read images of any size as patches, those of all images in a row, beside a grid that says which image has how many
(Qwen2-VL and its kin): planned with one image of one size a sample."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from taskflow.models.notes import note

GRID = "image_grid_thw"
BY_SPANS = "taskflow_flash_by_spans"
"""Name of `attention_by_spans`. Towers call what has flash in its name once for all images, and others image by image."""
USUAL_SIDE = 512  # rows and columns of an image, or somewhat less so that its windows are whole
CHANNELS = ("in_channels", "in_chans", "num_channels")


class PatchGrid(NamedTuple):
    """Patches of an image: ``side`` of the image, patches a row (as many as rows), and the numbers of a patch."""

    side: int
    across: int
    numbers: int


def grid_of(module: Any) -> PatchGrid | None:
    """Return the patches of an image of about the usual size, for a network that reads them beside a grid; None for another one."""
    own, accepts = getattr(module.config, "vision_config", None), inspect.signature(type(module).forward).parameters
    patch, merged = (getattr(own, name, None) for name in ("patch_size", "spatial_merge_size"))
    if GRID not in accepts or "pixel_values" not in accepts or not all(isinstance(one, int) and one > 0 for one in (patch, merged)):
        return None
    least, window = patch * merged, getattr(own, "window_size", None)  # type: ignore[operator]
    if isinstance(window, int) and window >= least:
        least *= window // least
    side = max(1, USUAL_SIDE // least) * least
    channels = next((one for name in CHANNELS if isinstance(one := getattr(own, name, None), int)), 3)
    return PatchGrid(side, side // patch, channels * getattr(own, "temporal_patch_size", 1) * patch**2)  # type: ignore[operator]


def patches_beside(module: Any, batch: int) -> Mapping[str, Any]:
    """Return an example of the patches (N, P, F) that a network reads beside tokens; empty for one that reads none. Its forward
    takes them so from now on, with the grid of as many images."""
    import torch

    found = grid_of(module)
    if found is None:
        return {}
    kind = type(module)
    grid = torch.tensor([[1, found.across, found.across]] * batch)
    by_three = {"mm_token_type_ids", "position_ids"} <= {*inspect.signature(kind.forward).parameters}

    def forward(self: Any, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> Any:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "pixel_values": pixel_values.flatten(0, 1), GRID: grid}
        if by_three:  # of time, rows and columns: one after another, as of words
            given["position_ids"] = torch.arange(input_ids.shape[1]).expand(3, *input_ids.shape)
        return kind.forward(self, **given)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    module.patches = found, by_three
    _register()
    module.config.vision_config._attn_implementation = BY_SPANS
    numbers = torch.empty(batch, found.across**2, found.numbers, dtype=module.dtype, device="meta")
    return {"pixel_values": numbers}


def say_patches(module: Any) -> None:
    """Say of what size images are planned that are read as patches, and which positions their tokens have."""
    if hasattr(module, "patches"):
        kind, (found, by_three) = type(module).__name__, module.patches
        note(f"hf: {kind}: its config says no size of images; {found.side} x {found.side} are planned, {found.across**2:,} patches")
        if by_three:
            note(f"hf: {kind}: tokens of an image have positions one after another, as where no mm_token_type_ids are given")


def _register() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if BY_SPANS not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(BY_SPANS, attention_by_spans)


def attention_by_spans(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *, scaling: float | None = None,
    dropout: float = 0.0, cu_seq_lens_q: Any = None, is_causal: bool | None = None, **more: Any,
) -> tuple[Any, None]:
    """Attention of (1, H, T, D), in which the tokens of each span see one another: as samples of a batch, since all are equally
    long. Returns (1, T, H, D). ``cu_seq_lens_q``: where spans begin, and the end. Raises ValueError if they differ in length."""
    from torch.nn import functional as F

    if cu_seq_lens_q is None:
        raise ValueError(f"{type(module).__name__} says no spans of its patches (cu_seq_lens_q), which it must")
    starts = cu_seq_lens_q.tolist()
    lengths = {end - start for start, end in zip(starts, starts[1:])}
    if len(lengths) != 1 or attention_mask is not None:
        raise ValueError(f"{type(module).__name__} divides its patches into spans of {sorted(lengths)}; all must be equally long")
    (length,), heads = lengths, query.shape[1]
    q, k, v = (x.transpose(1, 2).reshape(-1, length, x.shape[1], x.shape[-1]).transpose(1, 2) for x in (query, key, value))
    result = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=bool(is_causal), scale=scaling)
    return result.transpose(1, 2).reshape(1, -1, heads, value.shape[-1]), None
