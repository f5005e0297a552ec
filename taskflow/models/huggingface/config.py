"""Networks of Hugging Face's transformers, from a config.json alone: the class that it names, built without weights, becomes an
operator graph.

    graph = taskflow.models.huggingface.from_config("llama-70b/config.json", batch=64, steps=4096)
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from taskflow.collector import paused_collector
from taskflow.floats import float_type
from taskflow.graph import OperatorGraph
from taskflow.models.huggingface.beside import beside_words
from taskflow.models.huggingface.classes import class_of, known_type, last_line, one_line, why_not_built
from taskflow.models.huggingface.contrastive import own_loss
from taskflow.models.huggingface.parts import (
    require_no_other_part,
    require_one_tower,
    say_where_images_are,
    sounds_for,
    take_part,
)
from taskflow.models.huggingface.patches import say_patches
from taskflow.models.huggingface.replaced import (
    dtype_of,
    missing_result,
    require_cross_entropy,
    returning_none,
    say_what_is_replaced,
    without_choices_of_a_run,
)
from taskflow.models.notes import note
from taskflow.reading import short

DEFAULT_BATCH = 8
MOST_STEPS = 2048  # tokens of a sample if nobody says how many: at most those that the model has positions for
MOST_LAYERS = 10_000  # each is built
USUAL_SIDE = 512  # rows and columns of images, where a config says none
MOST_IN_TABLES = 20_000_000  # numbers of a parameter that is not trained
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length")


def from_config(
    config: str | Path | Mapping[str, Any], batch: int | None = None, steps: int | None = None, *, verify: bool = False,
    loss: str | None = None, name: str | None = None, part: str | None = None, dtype: str | None = None, lora: int | None = None,
    **changes: Any,
) -> OperatorGraph:
    """Return the operator graph of the network that a config.json of Hugging Face describes; its weights are never allocated.

    Args: ``config``: the file, its folder, or its contents. ``batch``: samples (None: 8). ``steps``: tokens of a sample (None:
    as many as the model has positions for, at most 2048). ``changes``: entries of the config to override. ``loss``: as for
    `from_torch` (None: cross-entropy of the logits). ``verify``: compare module and graph on random numbers, which needs memory
    for the weights. ``part``: "text" for the text part alone of a network that reads images or sounds as well. ``dtype``: of
    the weights, such as "bfloat16" (None: as the config says, else float32); what the class computes in float32 all the same
    is so in the graph. ``lora``: the rank of adapters beside the dense layers of all blocks, which alone are trained then (needs
    peft). Inputs of the graph have the names of forward's arguments. ``labels`` must already be the next tokens:
    nothing is shifted.

    Warns, each in one line (`ImportNote`), of what the config says and the graph has not. Raises ImportError without torch or
    transformers, FileNotFoundError, and ValueError for what is not understood, also for parts that would be left out.
    """
    config = _read(config)  # before the seconds that imports take
    from taskflow.models.pytorch import from_torch

    module = module_of(config, dtype=dtype, **changes)
    if lora is not None:
        module = with_adapters(module, lora)
    kind = type(module).__name__
    positional, keywords = examples_for(module, batch or DEFAULT_BATCH, steps)
    if part is None:
        keywords |= beside_words(module, batch or DEFAULT_BATCH) if "input_ids" in keywords else {}
    own = own_loss(module) if loss is part is None else None
    if own is None and loss is None and kind.endswith("Model") and "LMHead" not in kind:
        require_one_tower(module)
        raise ValueError(
            f"hf: {kind} gives features, not scores of classes; name a class with a head in "
            '"architectures", or choose loss=mse_loss'
        )
    if own is None and loss is None:
        require_cross_entropy(module)
    fed = set(keywords)
    if part is None:
        require_no_other_part(module, fed)
    else:
        take_part(module, part, fed)
        name = name or f"{kind}-{part}"
    say_what_is_replaced(module, config | changes)
    options: Any = dict(keywords=keywords, loss=own or loss or "cross_entropy", name=name, verify=verify)
    try:
        with _quiet(_transformers()):
            graph = _whatever_is_missing(module, lambda: from_torch(module, *positional, **options))
    except ValueError as error:
        if "input_ids" in keywords and {"pixel_values", "input_features"} & set(keywords):
            raise ValueError(f'{error}. hf:CONFIG.json#text (part="text") plans its text part alone') from error
        raise
    say_patches(module)
    say_where_images_are(module, graph)
    if own is not None:
        note(f"hf: {kind}: its loss compares all samples with one another; plans have no micro-batches")
    return graph


def _whatever_is_missing(module: Any, build: Callable[[], OperatorGraph]) -> OperatorGraph:
    """The graph that is made of a module. None stands for a result that its forward asks for and a part of it does not return."""
    try:
        return build()
    except ValueError as error:
        if (name := missing_result(error)) is None:
            raise
    with returning_none(name):
        graph = build()
    asks = f"its forward asks for {name}, which a part of it does not return in transformers {_transformers().__version__}"
    note(f"hf: {type(module).__name__}: {asks}; planned as if that were None")
    return graph


@paused_collector()
def module_of(
    config: str | Path | Mapping[str, Any], *, weights: bool = False, dtype: str | None = None, **changes: Any
) -> Any:
    """Return the torch.nn.Module of a config, in training mode, of the type ``dtype`` or else the config's. Without ``weights`` its
    parameters are on the meta device; its buffers (tables of positions) are real."""
    plain = _read(config)
    transformers = _transformers()
    entries = _of_first_layers(plain, changes) | changes
    kind = entries.get("model_type")
    if kind is None:
        raise ValueError('hf: the config has no "model_type"; it must be a config.json of Hugging Face\'s transformers')
    entries["model_type"] = kind = known_type(transformers, kind, entries.get("architectures") or ())
    known = _known(transformers, kind, plain)
    unknown = [key for key in changes if key not in known]
    if unknown:
        raise ValueError(f"hf: the config of {kind} has no entry {', '.join(unknown)}")
    entries = without_choices_of_a_run(entries)
    try:
        with _silent(transformers):
            theirs = transformers.AutoConfig.for_model(**entries)
    except Exception as error:  # whatever its checks raise
        blamed = _blamed(transformers, entries, changes)
        why = f"{blamed}: {last_line(error)}" if blamed else f"the config: {one_line(error)}"
        raise ValueError(f"hf: transformers {transformers.__version__} does not take {why}") from error
    try:
        text = theirs.get_text_config()
    except ValueError as error:
        raise ValueError(f"hf: {kind} has several networks for texts; plan one of them by its own config") from error
    for each in (theirs, text):
        each.use_cache = False  # caches are for generating; training has none
        each.output_router_logits = False  # they are for a loss that the graph has not, which `say_what_is_replaced` says
        if isinstance(layers := getattr(each, "num_hidden_layers", 0), int) and layers > MOST_LAYERS:
            raise ValueError(f"hf: num_hidden_layers must be at most {MOST_LAYERS:,}, got {short(layers)}")
    cls = class_of(transformers, theirs)
    import torch

    from taskflow.models.pytorch import on_meta

    try:
        with _silent(transformers), nullcontext() if weights else on_meta():
            module = cls._from_config(theirs, dtype=getattr(torch, dtype_of(entries) if dtype is None else str(float_type(dtype))))
    except Exception as error:  # whatever building it raises, such as for an activation that there is not
        raise ValueError(f"hf: {cls.__name__} cannot be built: {why_not_built(theirs, error)}") from error
    return _with_tables(module).train()


def _with_tables(module: Any) -> Any:
    """A module whose untrained parameters, such as tables of positions, have the numbers with which its own code begins."""
    import torch

    for path, part in [*module.named_modules()]:
        tables = [name for name, p in part.named_parameters(recurse=False) if p.is_meta and not p.requires_grad]
        for name in tables:
            shape = part._parameters[name].shape
            if shape.numel() <= MOST_IN_TABLES:
                part._parameters[name] = torch.nn.Parameter(torch.zeros(shape, dtype=part._parameters[name].dtype), False)
        steps = path.split(".")
        for count in range(1, len(steps) + 1) if tables else ():
            module._init_weights(module.get_submodule(".".join(steps[:count])))
    return module


def examples_for(module: Any, batch: int, steps: int | None) -> tuple[list[Any], dict[str, Any]]:
    """Return example arguments of forward, positional and by name, for a module of transformers. Images and sounds are of the
    module's own type, as those who train in 16 bits give them: not all networks convert them."""
    import torch

    config, wanted = module.config, module.main_input_name
    reads = _what(module)
    if reads == "input_ids":
        most = [getattr(each, key, None) for each in (config, config.get_text_config()) for key in POSITIONS]
        steps = steps or min(MOST_STEPS, *(p for p in most if p), MOST_STEPS)
        tokens = torch.empty(batch, steps, dtype=torch.long, device="meta")
        return [], {wanted: tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})
    if (sounds := sounds_for(module, batch, steps, MOST_STEPS)) is not None:
        return [], sounds
    if reads == "pixel_values":
        words = _needs_words(module)
        if steps is not None and not words:
            raise ValueError(f"hf: {type(module).__name__} reads images; it has no steps")
        side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None)
        if side is None:
            side = USUAL_SIDE
            note(f"hf: {type(module).__name__}: its config says no size of images; {side} x {side} are planned")
        rows, columns = side if isinstance(side, (tuple, list)) else (side, side)
        channels = getattr(config, "num_channels", None) or getattr(getattr(config, "vision_config", None), "num_channels", 3)
        frames = [count] if (count := getattr(config, "num_frames", None)) else []  # of a video
        pixels = torch.empty(batch, *frames, channels, rows, columns, dtype=module.dtype, device="meta")
        longest = getattr(config, "max_text_len", MOST_STEPS)
        tokens = {"input_ids": torch.empty(batch, min(steps or longest, longest), dtype=torch.long, device="meta")} if words else {}
        return [], {wanted: pixels} | tokens
    raise ValueError(
        f"hf: {type(module).__name__} reads {wanted}; only input_ids, pixel_values, and the input_values and input_features of "
        "sounds are known. Write a function that returns taskflow.from_torch(module, example), and give FILE.py:FUNCTION"
    )


def _what(module: Any) -> str:
    """What a module's first argument is: its name, but for Perceivers, which call tokens and images ``inputs``."""
    wanted, kind = str(module.main_input_name), type(module).__name__
    if wanted != "inputs":
        return wanted
    words = "MaskedLM" in kind or "SequenceClassification" in kind
    return "input_ids" if words else "pixel_values" if "ImageClassification" in kind else wanted


def _needs_words(module: Any) -> bool:
    """True for a network of images whose forward cannot be called without tokens."""
    argument = inspect.signature(type(module).forward).parameters.get("input_ids")
    return argument is not None and argument.default is inspect.Parameter.empty


def _read(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"hf: there is no file {path}; give a config.json, or the folder of a model")
    try:
        entries = json.loads(path.read_text("utf-8"), object_hook=_number_or)
    except UnicodeDecodeError as error:
        raise ValueError(f"hf: {path} is not JSON: byte {error.start} is no text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"hf: {path} is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"hf: {path} must hold an object, got {type(entries).__name__}")
    names = entries.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"hf: {path}: architectures must be a list of names of classes, got {short(names)}")
    if not isinstance(entries.get("model_type", ""), str):
        raise ValueError(f"hf: {path}: model_type must be a name, got {short(entries['model_type'])}")
    return entries


def _of_first_layers(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose lists with an entry for each layer, such as ``layer_types``, have those of the first layers, if ``changes``
    ask for fewer layers than it has."""
    asked, layers = changes.get("num_hidden_layers"), plain.get("num_hidden_layers")
    if not isinstance(asked, int) or not isinstance(layers, int) or not 0 < asked < layers:
        return dict(plain)
    cut = {
        key: value[:asked] for key, value in plain.items()
        if isinstance(value, list) and len(value) == layers and "layer" in key and key not in changes
    }  # fmt: skip
    if cut:
        note(f"hf: {asked} of {layers} layers: {' and '.join(cut)} of the first {asked}")
    return {**plain, **cut}


def _number_or(entries: dict[str, Any]) -> Any:
    """An object as it is, or the number that transformers writes so, since JSON has no infinity: ``{"__float__": "Infinity"}``."""
    given = entries.get("__float__")
    return float(given) if len(entries) == 1 and isinstance(given, str) else entries


def _transformers() -> Any:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise ImportError("hf: needs PyTorch and transformers, to build the network: pip install 'soap-taskflow[hf]'") from error
    return transformers


def _blamed(transformers: Any, entries: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """The entry of a config without which transformers takes it, of ``changes`` if it can be; empty if there is no single one."""
    for key in sorted(entries.keys() - {"model_type"}, key=lambda one: (one not in changes, one)):
        with suppress(Exception), _silent(transformers):  # whatever its checks raise
            transformers.AutoConfig.for_model(**{other: value for other, value in entries.items() if other != key})
            return f"{key} = {short(entries[key])} in the config"
    return ""


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Without warnings of tokens that only generating needs, and of weights without elements."""
    with _quiet(transformers), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without what transformers says of kernels that are not installed, which a plan does not need."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)


def _known(transformers: Any, kind: str, entries: Mapping[str, Any]) -> set[str]:
    """Entries that a config of this kind has."""
    try:
        plain = transformers.AutoConfig.for_model(kind)
    except Exception as error:
        raise ValueError(f"hf: transformers {transformers.__version__} has no model_type {kind!r}") from error
    return {*plain.to_dict(), *plain.attribute_map, *entries} - {"use_cache"} | {"architectures"}


def with_adapters(module: Any, rank: int) -> Any:
    """Return a module whose dense layers, all but the one that gives the scores, have adapters of this ``rank``: LoRA, as peft has
    it for ``target_modules="all-linear"`` without dropout (Hu et al., "LoRA: Low-rank adaptation of large language models", arXiv
    2106.09685). Nothing else of it is trained. Changes the module. Raises ImportError without peft, and ValueError for a rank below
    1 or a module that peft has no place for."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"hf: lora must be a rank, an integer of 1 or more, got {rank!r}")
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("hf: lora needs peft: pip install peft") from error
    asked = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what transformers will change
            return get_peft_model(module, asked, autocast_adapter_dtype=False).base_model.model
    except ValueError as error:
        raise ValueError(f"hf: lora: {type(module).__name__}: {error}") from error
