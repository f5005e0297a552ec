"""What a config says and a graph has not: choices of a run, losses, types. Each is said in one line, or refused."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from taskflow.models.notes import listed, note

FREE = {
    "_name_or_path", "_commit_hash", "architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version",
    "quantization_config", "task_specific_params", "use_cache", "gradient_checkpointing", "attn_implementation",
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation_autoset", "num_nextn_predict_layers",
}  # entries that every config may have, or that are said by themselves
GENERATING = {
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_beams",
    "num_beam_groups", "diversity_penalty", "max_length", "min_length", "max_new_tokens", "early_stopping", "do_sample",
    "num_return_sequences", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "forced_decoder_ids", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "remove_invalid_values", "output_scores", "return_dict_in_generate", "decoder_start_token_id", "max_window_layers",
    "prefix", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "cls_token_id", "mask_token_id",
}  # entries that matter to generating, or to tokenisers
ATTENTION = ("_attn_implementation", "attn_implementation")


def without_choices_of_a_run(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's entries without kernels of attention that only run on GPUs, and without recomputation: which kernel
    computes the same, and what is computed twice, are not the network's. `say_what_is_replaced` says it."""
    kept = dict(entries)
    kept.pop("gradient_checkpointing", None)
    for key in ATTENTION:
        if str(kept.get(key, "")).startswith(("flash", "kernels-", "paged")):
            kept.pop(key)
    return kept


LAYERS_LEFT_OUT = "the config's {0} ({1}), by which steps leave out layers, is not planned: all layers are"
DRAWN_PLACES = "changes of positions that each step draws ({0}) are left out"
RANDOM = {
    "layerdrop": LAYERS_LEFT_OUT, "encoder_layerdrop": LAYERS_LEFT_OUT, "decoder_layerdrop": LAYERS_LEFT_OUT,
    "apply_spec_augment": "masks of the data that each step draws ({0}) are left out",
    "pos_embed_shift": DRAWN_PLACES, "pos_embed_jitter": DRAWN_PLACES, "pos_embed_rescale": DRAWN_PLACES,
    "altup_coef_clip": "weights are not clipped in each step, as {0} ({1}) says",
}
"""Entries by which forward draws random numbers of its own, or changes weights, and what is said of them."""


def without_random_parts(module: Any) -> list[str]:
    """Turn off what forward draws by itself, layers that it leaves out or masks of the data, and what it does to weights. Returns
    what is said of it."""
    notes: list[str] = []
    parts = (getattr(module.config, key, None) for key in module.config.sub_configs)
    configs = {id(each): each for each in (module.config, module.config.get_text_config(), *parts) if each is not None}.values()
    for config, (key, text) in product(configs, RANDOM.items()):
        value = getattr(config, key, None)
        if value:
            none = None if key.startswith(("pos_", "altup_")) else type(value)(0)
            object.__setattr__(config, key, none)  # which not every config would take
            notes.append(text.format(key, value))
    for part in module.modules():
        if notes and isinstance(getattr(part, "layerdrop", None), float):
            part.layerdrop = 0.0
        if hasattr(part, "layers_are_rescaled"):  # RWKV halves weights and hidden states in evaluation, which computes the same
            part.layers_are_rescaled, part.config.rescale_every = None, 0
    return [*notes, *_without_noise_of_routers(module)]


NOISE = ("jitter_noise", "input_jitter_noise")  # of what routers read, as parts call it
DRAWING = {"PhimoeTopKRouter"}  # routers that draw experts by chance in training, and choose the best in evaluation


def _without_noise_of_routers(module: Any) -> Iterator[str]:
    found: dict[str, float] = {}
    for part, key in product(module.modules(), NOISE):
        if isinstance(value := getattr(part, key, None), float) and value:
            setattr(part, key, 0.0)
            found[key] = value
    for part in module.modules():  # the first step converts these for good
        if hasattr(part, "classifier") and hasattr(part, "jitter_noise"):
            part.classifier.to(part.dtype)
    for key, value in found.items():
        yield f"noise of what its routers read ({key}={value}) is left out"
    if routers := [part.eval() for part in module.modules() if type(part).__name__ in DRAWING]:
        yield f"its routers ({type(routers[0]).__name__}) draw experts by chance in training; planned as they choose in evaluation"


TYPES = ("float32", "bfloat16", "float16", "float64")


def dtype_of(entries: Mapping[str, Any]) -> str:
    """Return the float type that a config says its weights have. If it says none that is computed in: float32, or bfloat16 beside
    weights of 8 bits or fewer, which nobody computes in float32."""
    text = entries.get("text_config")
    both = {**text, **entries} if isinstance(text, Mapping) else entries
    wanted = _type_entry(both)
    if wanted is None and both.get("quantization_config"):
        return "bfloat16"
    return wanted if wanted in TYPES else "float32"


def _type_entry(entries: Mapping[str, Any]) -> str | None:
    wanted = entries.get("dtype") or entries.get("torch_dtype")
    return None if wanted in (None, "auto") else str(wanted).removeprefix("torch.")


def require_cross_entropy(module: Any) -> None:
    """Raise ValueError for a classifier whose own loss is another than the cross-entropy of its scores."""
    config, kind = module.config, type(module).__name__
    if kind.endswith("ForCTC"):
        raise ValueError(f"hf: {kind} is trained by CTC, a loss that there is not here; choose loss=mse_loss to plan it by another")
    if "Classification" not in kind:
        return
    problem = getattr(config, "problem_type", None) or ("regression" if config.num_labels == 1 else None)
    if problem == "regression":
        raise ValueError(f"hf: {kind} has num_labels={config.num_labels} and is trained by regression; choose loss=mse_loss")
    if problem == "multi_label_classification":
        raise ValueError(
            f"hf: {kind} has problem_type {problem!r}, whose loss is the binary cross-entropy of each label, which there is not "
            "here; choose loss=cross_entropy or loss=mse_loss to plan it with another"
        )


def say_what_is_replaced(module: Any, entries: Mapping[str, Any]) -> None:
    """Say, each in one line, what a config says and the graph of its module has not."""
    kind, text = type(module).__name__, entries.get("text_config") or {}
    for each in without_random_parts(module):
        note(f"hf: {kind}: {each}")
    both = {**text, **entries} if isinstance(text, Mapping) else dict(entries)
    if (wanted := _type_entry(both)) not in (None, *TYPES):
        note(f"hf: {kind}: the config says {wanted}; the network is planned in {dtype_of(both)}")
    quantised = both.get("quantization_config")
    if quantised:
        how = quantised.get("quant_method", "of some kind") if isinstance(quantised, Mapping) else "of some kind"
        note(f"hf: {kind}: the config's quantization ({how}) is left out; weights are planned whole, in {dtype_of(both)}")
    if both.get("output_router_logits"):
        share = getattr(module.config.get_text_config(), "router_aux_loss_coef", None)
        note(f"hf: {kind}: the auxiliary loss of its router (router_aux_loss_coef={share}) is left out of the loss")
    if both.get("gradient_checkpointing"):
        note(f"hf: {kind}: the config's gradient_checkpointing is left out; a plan chooses what is recomputed")
    for key in ATTENTION:
        if str(both.get(key, "")).startswith(("flash", "kernels-", "paged")):
            note(f"hf: {kind}: the config's attention is {both[key]}; attention is planned as PyTorch's own computes it")
    if both.get("auto_map"):
        note(f"hf: {kind}: the config names code of its own (auto_map), which is not run; transformers' {kind} is planned")
    further = both.get("num_nextn_predict_layers")
    if further and not _reads(module, "num_nextn_predict_layers"):
        note(f"hf: {kind}: its {further} layers that predict further tokens are left out, as in transformers")
    if unknown := _unknown(module, entries):
        note(f"hf: {kind}: nothing in transformers' code of it reads the config's {listed(unknown)}: left out")


def _unknown(module: Any, entries: Mapping[str, Any]) -> list[str]:
    """Entries of a config that its class does not have and its code does not mention."""
    known = FREE | GENERATING
    for config in (module.config, module.config.get_text_config()):
        kind = type(config)
        known |= {*kind().to_dict(), *getattr(config, "attribute_map", {}), *inspect.signature(kind).parameters}
    return [key for key in entries if key not in known and not _reads(module, key)]


def _reads(module: Any, key: str) -> bool:
    """True if the source of a module's class, of its config's, or what all of them share mentions an entry."""
    own = {kind.__module__ for kind in (type(module), type(module.config), type(module.config.get_text_config()))}
    for name in (*own, "transformers.configuration_utils", "transformers.modeling_rope_utils"):
        try:
            if key in inspect.getsource(sys.modules[name]):
                return True
        except (KeyError, OSError, TypeError):  # no source
            continue
    return False


def missing_result(error: BaseException | None) -> str | None:
    """Return the name of what forward has asked of a mapping of transformers that has no such entry, if an error comes of that."""
    while error is not None:
        if isinstance(error, AttributeError) and error.name is not None and _is_mapping(error.obj):
            return error.name
        error = error.__cause__ or error.__context__
    return None


def _is_mapping(value: Any) -> bool:
    from transformers.utils.generic import ModelOutput

    return isinstance(value, ModelOutput)


@contextmanager
def returning_none(name: str) -> Iterator[None]:
    """Within the block, mappings of transformers that have no entry of that name have None for it."""
    from transformers.utils.generic import ModelOutput

    assert name not in vars(ModelOutput), name
    setattr(ModelOutput, name, None)
    try:
        yield
    finally:
        delattr(ModelOutput, name)
