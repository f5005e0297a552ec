"""Translation: parallel text, its batches, BLEU, and the training program."""

from taskflow.training.translation.program import DATA_HELP, TranslationOptions, translation, translation_options

__all__ = ["DATA_HELP", "TranslationOptions", "translation", "translation_options"]
