"""Networks of Hugging Face's transformers as operator graphs, from a config.json alone."""

from taskflow.models.huggingface.config import DEFAULT_BATCH, examples_for, from_config, module_of

__all__ = ["DEFAULT_BATCH", "examples_for", "from_config", "module_of"]
