"""Examples of sounds for networks of transformers: samples of a wave, or spectra of frames."""

from __future__ import annotations

import inspect
from typing import Any

from taskflow.models.notes import note

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
