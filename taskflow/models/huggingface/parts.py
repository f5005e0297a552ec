"""Parts of multimodal networks: towers for images, whose results stand among tokens, and for sounds; or the text part alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.models.huggingface.patches import patches_beside
from taskflow.models.notes import note
from taskflow.operators.masked_scatter import MaskedScatter

FEEDS = {"image": "pixel_values", "vision": "pixel_values", "video": "pixel_values", "audio": "input_features"}
"""What a tower reads, by a word in the name of its config."""


def other_parts(module: Any, fed: set[str]) -> list[tuple[str, str, Any]]:
    """Return (name of its config, path, module) for every tower that no argument in ``fed`` reaches."""
    text, found, accepts = module.config.get_text_config(), [], inspect.signature(type(module).forward).parameters
    for key in getattr(module.config, "sub_configs", {}):
        own = getattr(module.config, key, None)
        reads = next((feed for word, feed in FEEDS.items() if word in key), None)
        if key == "encoder_config" and "input_features" in accepts:  # of sounds, as Granite Speech has it
            reads = "input_features"
        if own is None or own is text or reads is None or reads in fed:
            continue
        found += [(key, path, part) for path, part in _of_config(module, own)]
    return found


def _of_config(module: Any, config: Any) -> Iterator[tuple[str, Any]]:
    """The outermost parts of a module that are made from a config."""
    taken: list[str] = []
    for path, part in module.named_modules():
        if path and getattr(part, "config", None) is config and not any(path.startswith(f"{other}.") for other in taken):
            taken.append(path)
            yield path, part


def images_beside(module: Any, batch: int) -> dict[str, Any]:
    """Return an example of the images that a network reads beside tokens, one for each sample, by the argument's name; empty for a
    network that reads none, or none of a fixed size."""
    import torch

    if patches := patches_beside(module, batch):
        return dict(patches)
    own = getattr(module.config, "vision_config", None)
    channels, side = (getattr(own, name, None) for name in ("num_channels", "image_size"))
    sides = tuple(side) if isinstance(side, (tuple, list)) else (side, side)
    if "pixel_values" not in inspect.signature(type(module).forward).parameters or not all(isinstance(s, int) for s in sides):
        return {}
    if not isinstance(channels, int):
        return {}
    return {"pixel_values": torch.empty(batch, channels, *sides, dtype=module.dtype, device="meta")}


def say_where_images_are(module: Any, graph: OperatorGraph) -> None:
    """Say how many tokens of a sample stand for its image, and what they see."""
    kind = type(module).__name__
    for node in graph:
        if isinstance(node.operator, MaskedScatter):
            tokens, rows = node.inputs[1].shape[1], node.inputs[2].shape[1]
            what = "sound" if node.operator.token == getattr(module.config, "audio_token_id", None) else "image"
            note(
                f"hf: {kind}: one {what} a sample is planned, for {rows:,} of its {tokens:,} tokens: those that are "
                f"{node.operator.token} in the data, wherever they stand"
            )
            if "token_type_ids" in inspect.signature(type(module).forward).parameters:
                note(f"hf: {kind}: tokens of an image see those before them, as all do where no token_type_ids are given")


def require_one_tower(module: Any) -> None:
    """Raise ValueError for a network of several towers whose results are compared with one another; it names their model types."""
    towers = [getattr(module.config, key, None) for key in getattr(module.config, "sub_configs", {})]
    kinds = [tower.model_type for tower in towers if tower is not None]
    if len(kinds) > 1:
        raise ValueError(
            f"hf: {type(module).__name__} compares what its towers make of all samples with one another, a loss that there is not "
            f"here; plan a tower by itself, with loss=mse_loss: a config with \"model_type\": {' or '.join(map(repr, kinds))}"
        )


def require_no_other_part(module: Any, fed: set[str]) -> None:
    """Raise ValueError if a tower would be left out; it offers the text part by name."""
    if parts := other_parts(module, fed):
        raise ValueError(
            f"hf: {type(module).__name__} reads more than tokens: {_message(parts)} would be left out. hf:CONFIG.json#text "
            f'(part="text") plans its text part alone, {_text_class(module)}'
        )


def take_part(module: Any, part: str, fed: set[str]) -> None:
    """Take the towers, and what leads from them to the text, out of a module, and say so. Raises ValueError for another part than
    "text", and for a network that has no towers."""
    if part != "text":
        raise ValueError(f"hf: {type(module).__name__} has no part {part!r}; there is text")
    parts = other_parts(module, fed)
    if not parts:
        raise ValueError(f"hf: {type(module).__name__} reads tokens alone; leave out #text")
    joining = [
        ("", path, child) for path, child in module.named_modules()
        if any(word in path.rpartition(".")[2] for word in ("projector", "connector", "embed_vision", "embed_audio"))
        and not any(path.startswith(f"{other}.") for _, other, _ in parts)
    ]
    for _, path, _ in (*parts, *joining):
        parent, _, name = path.rpartition(".")
        module.get_submodule(parent)._modules[name] = None
    note(f"hf: {type(module).__name__}: its text part alone is planned, {_text_class(module)}, without {_message(parts + joining)}")


def _message(parts: list[tuple[str, str, Any]]) -> str:
    return ", ".join(
        f"{path} ({sum(p.numel() for p in part.parameters()):,} parameters{f', of its {key}' if key else ''})"
        for key, path, part in parts
    )


def _text_class(module: Any) -> str:
    text = module.config.get_text_config()
    found = [type(part).__name__ for path, part in module.named_modules() if path and getattr(part, "config", None) is text]
    return f"{found[0]} and its head" if found else "its decoder"


USUAL_SOUND = 160_000  # numbers of a sound where nobody says how many: 10 s at 16 kHz
USUAL_FRAMES = 1_000  # spectra of a sound where nobody says how many: 10 s, one each 10 ms
BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")  # numbers of a spectrum, as configs call them
LONGEST = ("max_target_positions", "max_position_embeddings")  # tokens of a text, as configs call them


def sounds_for(module: Any, batch: int, steps: int | None, most_steps: int) -> dict[str, Any] | None:
    """Return example arguments of forward for a module that reads sounds: their shapes on the meta device, in the module's type;
    and tokens (N, at most ``most_steps``) where it writes texts. ``steps``: of a text, or else of a sound. None for a module whose
    sounds are not known."""
    import torch

    config, wanted = module.config, module.main_input_name
    if wanted not in ("input_features", "input_values"):
        return None
    texts = config.is_encoder_decoder and "decoder_input_ids" in inspect.signature(type(module).forward).parameters
    usual = USUAL_FRAMES if wanted == "input_features" else USUAL_SOUND
    length = usual if texts or steps is None else steps
    shape = (_spectra if wanted == "input_features" else _wave)(config, length)
    if shape is None:
        return None
    if steps is None and length in shape:
        what, others = "spectra" if usual == USUAL_FRAMES else "numbers", "" if texts else " (--set steps= says others)"
        note(f"hf: {type(module).__name__} reads sounds; {usual:,} {what} a sample are planned{others}")
    found = {wanted: torch.empty((batch, *shape), dtype=module.dtype, device="meta")}
    if texts:
        longest = min([most_steps, *(value for key in LONGEST if (value := getattr(config, key, None)))])
        found["decoder_input_ids"] = torch.empty(batch, min(steps or longest, longest), dtype=torch.long, device="meta")
    return found


def _spectra(config: Any, frames: int) -> tuple[int, ...] | None:
    """Frames and numbers of each, or as Whisper has it: numbers and frames, of which every second one is taken."""
    found = ((of, key) for of in (config, getattr(config, "encoder_config", config)) for key in BINS if hasattr(of, key))
    of, key = next(found, (None, ""))
    if of is None:
        return None
    bins, most = getattr(of, key), getattr(config, "max_source_positions", None)
    if config.is_encoder_decoder and most:
        return (bins, 2 * most) if key == BINS[0] else (most, bins)
    return frames, bins


def _wave(config: Any, length: int) -> tuple[int, ...] | None:
    """Samples of a wave; frames and numbers of each where a config has both."""
    if hasattr(config, "max_length") and hasattr(config, BINS[0]):
        return config.max_length, config.num_mel_bins
    return (length,) if hasattr(config, "conv_stride") or config.is_encoder_decoder else None
