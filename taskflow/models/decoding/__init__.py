"""Translations from a trained network: beam search, and the steps of each network that it calls."""

from taskflow.models.decoding.beam_search import beam_search
from taskflow.models.decoding.translators import NMTTranslator, TransformerTranslator, Translator

__all__ = ["NMTTranslator", "TransformerTranslator", "Translator", "beam_search"]
