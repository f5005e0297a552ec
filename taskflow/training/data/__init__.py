"""Data sets and batches: text, labelled text, subwords, pictures, and reproducible order."""

from taskflow.training.data.background import Background
from taskflow.training.data.batches import LanguageModelBatches, Window
from taskflow.training.data.corpus import Corpus, cached
from taskflow.training.data.fingerprint import digest_of
from taskflow.training.data.labelled_text import TextBatches, load_labelled
from taskflow.training.data.protocols import Batches, LazyBatches, Say, Validation, Watch
from taskflow.training.data.subwords import BEGIN, END, PAD, Subwords
from taskflow.training.data.synthetic import random_feeds
from taskflow.training.data.text import load_corpus, load_files, load_ptb, load_stdlib
from taskflow.training.data.tokens import TokenArray, token_type
