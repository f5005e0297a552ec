"""What networks read beside tokens: an image or a sound for each sample. Where forward wants to be told more, or asks the data for
it (sizes, tiles, which images are padding), it is given what holds for one whole image or sound a sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from taskflow.models.huggingface.parts import images_beside
from taskflow.models.huggingface.patches import USUAL_SIDE, PatchGrid

Examples = Mapping[str, Any]


def beside_words(module: Any, batch: int) -> dict[str, Any]:
    """Return an example of the images and sounds that a network reads beside tokens, one for each sample, by the arguments' names;
    empty for a network that reads none, or none of a fixed size. Its forward may take them in their own way from now on."""
    maker = _maker(module)
    images = images_beside(module, batch) if maker is None else maker(module, batch)
    return {**images, **_sound(module, batch)}


def _maker(module: Any) -> Callable[[Any, int], Examples] | None:
    kind = module.config.model_type
    tower = getattr(getattr(module.config, "vision_config", None), "model_type", None)
    return MAKERS.get(kind) or (_of_one_size if tower == "pixtral" else None)


def _pixels(module: Any, *shape: int) -> Examples:
    import torch

    return {"pixel_values": torch.empty(shape, dtype=module.dtype, device="meta")}


def _as(module: Any, **methods: Any) -> None:
    """Give a module these methods in place of its class's."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})


# ---- Pixtral's tower: Pixtral, Mistral Small 3.1 and 3.2 --------------------------------------------------------------


def _of_one_size(module: Any, batch: int) -> Examples:
    """Images of one size, which go through the tower side by side, and not in a row with a mask between them."""
    from transformers.utils.output_capturing import capture_outputs

    own, merged = module.config.vision_config, getattr(module.config, "spatial_merge_size", 1)
    least = own.patch_size * merged
    side = max(1, min(USUAL_SIDE, own.image_size) // least) * least
    tower, kind = module.get_submodule("model.vision_tower"), type(module)
    across = side // own.patch_size
    _as(tower, forward=capture_outputs(_batched_tower))
    module.patches = PatchGrid(side, across, own.num_channels * own.patch_size**2), False
    if merged > 1:
        def forward(self: Any, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> Any:
            sizes = [(side, side)] * len(input_ids)
            return kind.forward(self, input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask,
                                image_sizes=sizes)

        _as(module, forward=forward)
        _as(module.get_submodule("model.multi_modal_projector.patch_merger"), forward=_merged_patches)
    return _pixels(module, batch, own.num_channels, side, side)


def _batched_tower(self: Any, pixel_values: Any, image_sizes: Any = None, **more: Any) -> Any:
    """Pixtral's tower on images of one size: (N, C, H, W) -> (N, patches, features)."""
    import torch

    patches = self.patch_conv(pixel_values.to(self.patch_conv.weight.dtype))
    rows, columns = (torch.arange(side, device=patches.device) for side in patches.shape[-2:])
    places = torch.stack([each.flatten() for each in torch.meshgrid(rows, columns, indexing="ij")], -1)
    patches = self.ln_pre(patches.flatten(2).transpose(1, 2))
    turns = self.patch_positional_embedding(patches, places)
    return self.transformer(patches, attention_mask=None, position_embeddings=turns, **more)


def _merged_patches(self: Any, image_features: Any, image_sizes: Any) -> Any:
    """Mistral 3's squares of patches as one token each: (N, patches, features) -> (N tokens, features)."""
    import torch

    across, count = image_sizes[0][0] // self.patch_size, image_features.shape[-1]
    grid = image_features.reshape(-1, across, across, count).permute(0, 3, 1, 2)
    squares = torch.nn.functional.unfold(grid, self.spatial_merge_size, stride=self.spatial_merge_size)
    return self.merging_layer(squares.transpose(1, 2).flatten(0, 1))


# ---- tiles ------------------------------------------------------------------------------------------------------------


def _whole_images(module: Any, batch: int) -> Examples:
    """SmolVLM and Idefics 3: images (N, 1, C, H, W), of which none is left out as padding."""
    own = module.config.vision_config
    _as(module.model, get_image_features=_features_of_all)
    return _pixels(module, batch, 1, own.num_channels, own.image_size, own.image_size)


def _features_of_all(self: Any, pixel_values: Any, pixel_attention_mask: Any = None, **more: Any) -> Any:
    result = self.vision_model(pixel_values=pixel_values.flatten(0, 1).to(dtype=self.dtype), return_dict=True)
    result.pooler_output = self.connector(result.last_hidden_state).flatten(0, 1)
    return result


def _all_tiles(module: Any, batch: int) -> Examples:
    """Llama 3.2 Vision: one image a sample, as many tiles as there may be, (N, 1, tiles, C, H, W), which all tokens see."""
    own, kind = module.config.vision_config, type(module)
    tiles, side = own.max_num_tiles, own.image_size
    ratio = 1 + next(i for i, (rows, columns) in enumerate(own.supported_aspect_ratios) if rows * columns == tiles)

    def forward(self: Any, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> Any:
        import torch

        return kind.forward(
            self, input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask,
            aspect_ratio_ids=torch.full((len(input_ids), 1), ratio), aspect_ratio_mask=_AllTiles(tiles),
        )

    _as(module, forward=forward)
    return _pixels(module, batch, 1, tiles, own.num_channels, side, side)


class _AllTiles:
    """Stands for Mllama's mask of tiles, which its tower makes one of patches from for each image, (N, 1, L, L): where all images
    have all tiles one does for all."""

    def __init__(self, tiles: int) -> None:
        self.tiles = tiles

    def reshape(self, *shape: int) -> Any:
        """The mask (1, tiles) of any image."""
        import torch

        return torch.ones(1, self.tiles, dtype=torch.long)


# ---- sounds -----------------------------------------------------------------------------------------------------------


def _sound(module: Any, batch: int) -> Examples:
    """Spectra (N, bins, frames) beside tokens, as Whisper's encoder reads them."""
    import torch

    own = getattr(module.config, "audio_config", None)
    bins, most = (getattr(own, name, None) for name in ("num_mel_bins", "max_source_positions"))
    accepts = inspect.signature(type(module).forward).parameters
    if "input_features" not in accepts or not isinstance(bins, int) or not isinstance(most, int):
        return {}
    if module.config.model_type in ("qwen2_audio", "voxtral"):
        _as(module, forward=_with_whole_sound)
    return {"input_features": torch.empty(batch, bins, 2 * most, dtype=module.dtype, device="meta")}


def _with_whole_sound(self: Any, input_ids: Any, input_features: Any, attention_mask: Any = None) -> Any:
    """Qwen2-Audio and Voxtral, whose forward asks the data how long the sounds are, or how many tokens stand for them: all are
    whole."""
    inner = self.model
    if hasattr(inner, "get_audio_features"):
        sounds = inner.get_audio_features(input_features).pooler_output
    else:
        sounds = inner.multi_modal_projector(inner.audio_tower(input_features).last_hidden_state).flatten(0, 1)
    words = inner.get_input_embeddings()(input_ids)
    there = (input_ids == self.config.audio_token_id).unsqueeze(-1)
    words = words.masked_scatter(there, sounds.to(words.dtype))
    own: Any = type(self).__mro__[1]
    return own.forward(self, inputs_embeds=words, attention_mask=attention_mask)


MAKERS: dict[str, Callable[[Any, int], Examples]] = {
    "smolvlm": _whole_images, "idefics3": _whole_images, "mllama": _all_tiles,
}
"""Towers for images that need more than pixels, by the network's model type."""
