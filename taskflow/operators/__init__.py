"""Operators, one kind a file, and the functions that add them to a graph. Importing this fills the registry."""

from taskflow.operators.adaptive_avg_pool2d import adaptive_avg_pool2d
from taskflow.operators.avg_pool2d import avg_pool2d
from taskflow.operators.batch_norm import batch_norm
from taskflow.operators.binary import add, mul, sub
from taskflow.operators.concat import concat
from taskflow.operators.conv2d import conv2d
from taskflow.operators.cross_entropy import cross_entropy
from taskflow.operators.dropout import dropout
from taskflow.operators.embedding import embedding
from taskflow.operators.input import input
from taskflow.operators.linear import linear
from taskflow.operators.lstm import lstm, lstm_layer
from taskflow.operators.matmul import matmul
from taskflow.operators.max_pool2d import max_pool2d
from taskflow.operators.pad import pad
from taskflow.operators.reshape import flatten, reshape
from taskflow.operators.softmax import softmax
from taskflow.operators.split import split
from taskflow.operators.state import state
from taskflow.operators.transpose import transpose
from taskflow.operators.unary import relu, scale, sigmoid, tanh

__all__ = [
    "adaptive_avg_pool2d", "add", "avg_pool2d", "batch_norm", "concat", "conv2d", "cross_entropy", "dropout", "embedding",
    "flatten",
    "input", "linear", "lstm", "lstm_layer", "matmul", "max_pool2d", "mul", "pad", "relu", "reshape", "scale",
    "sigmoid", "softmax", "split", "state", "sub", "tanh", "transpose",
]
