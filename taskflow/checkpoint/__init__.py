"""Weights and training state in files."""

from taskflow.checkpoint.checkpoint import Checkpoint, load_checkpoint, read_checkpoint, same_sums, save_checkpoint
from taskflow.checkpoint.stored import StoredWeights
from taskflow.checkpoint.weights import load_weights, on_first_rank, read_weights, save_weights
from taskflow.checkpoint.writer import CheckpointWriter, Written, newest_checkpoint
