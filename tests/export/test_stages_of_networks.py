"""Hugging Face's networks in two stages for PyTorch: the stages' code, one after the other, computes what the network computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")

import taskflow  # noqa: E402
from taskflow.export import exported  # noqa: E402
from taskflow.models.huggingface import examples_for  # noqa: E402
from taskflow.models.pytorch import from_torch  # noqa: E402

_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
BATCH, STEPS, ROWS = 8, 16, 2
NOT_IMPORTED = {"RoBERTa", "BLOOM", "GPT-OSS", "DeepSeek V3", "ViT MAE"}  # the last draws other numbers in each of two calls
WHOLE = {  # statistics, or a maximum, of the whole batch: no micro-batches
    "ResNet", "RegNet", "SwiftFormer", "MobileViT", "EfficientNet", "Parakeet", "Grounding DINO", "Wav2Vec 2, Conformer", "DPT",
    "CvT", "RT-DETR", "RT-DETR v2", "LongT5",
}
ONE_STAGE = "stage 1 of 2 has no parameters .* a layer that several stages use is computed by the last of them"
REFUSED = {
    **dict.fromkeys(("Mistral Large 4", "Gemma 4"), "hands on a KVSharingDict, which stages cannot give each other"),
    **{f"{name}, images": ONE_STAGE for name in ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL", "Qwen3-VL-MoE", "Qwen3.5", "GLM-4V")},
    "Gemma 3n": "mul in model changes a tensor in place", "MPNet": "add in mpnet.encoder changes a tensor in place",
    "Big Bird": "reads the buffer bert.embeddings.token_type_ids, which belongs to a layer",
    "Nystromformer": "cannot follow NystromformerForMaskedLM",  # its buffers have one batch's size
    "Deformable DETR": "model.encoder: PyTorch says: aten._local_scalar_dense.default",
    "Llama 4, chunks of 8": "hands on a type, which stages cannot give each other",
    "ConvBERT": "reads the buffer convbert.embeddings.token_type_ids, which belongs to a layer",
    "Funnel": "forward changes funnel.decoder.attention_structure.seq_len",
    **dict.fromkeys(("Phi-4 mini (longrope)", "PhiMoE"), "copy in model.rotary_emb changes a tensor in place"),
    "Perceiver": "forward hands on a Embedding, which stages cannot give each other",
    "Llama 4, images": "cannot follow Llama4ForConditionalGeneration",  # without images its own code fails
}


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


imports = load("benchmark_of_imports_for_stages", _file)


def check(name: str, folder: Path) -> None:
    module = imports.without_dropout(imports.CONFIGS[name])
    module.config.use_cache = False
    _, inputs = examples_for(module, BATCH, None if module.main_input_name in ("pixel_values", "input_values") else STEPS)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        key: torch.randn(value.shape, generator=generator) if value.is_floating_point()
        else torch.randint(3, 200, value.shape, generator=generator) for key, value in inputs.items()
    }
    graph = from_torch(module, keywords=inputs, verify=False)
    found = exported(graph, taskflow.choose("p2 mb2", graph, taskflow.host(2))[0], "torch", "parallel.py")
    assert not found.differences and found.ranks == 2
    (folder / "parallel.py").write_text(found.files["parallel.py"])
    first, second = load("stages_of_a_network", folder / "parallel.py").plan().stages
    few = {key: value[:ROWS] for key, value in inputs.items()}
    values = first.run(module, *(few[key] for key in first.inputs))
    values = values if isinstance(values, tuple) else (values,)
    scores = second.run(module, *values, *(few[key] for key in second.inputs))
    wanted = module(**few)
    torch.testing.assert_close(scores, getattr(wanted, "logits", wanted[0]), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ViT", "Mistral, window 8"])
def test_stages_compute_what_the_network_computes(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in imports.CONFIGS if name not in NOT_IMPORTED])
def test_stages_of_all_networks_compute_what_the_network_computes(name: str, tmp_path: Path) -> None:
    why = r"takes several of the 4 micro-batches of .* together" if name in WHOLE else REFUSED.get(name)
    if why is None:
        check(name, tmp_path)
        return
    with pytest.raises(ValueError, match=why):
        check(name, tmp_path)
