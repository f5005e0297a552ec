"""Operators, one kind a file, and the functions that add them to a graph. Importing this fills the registry."""

from taskflow.operators.binary import add, mul, sub
from taskflow.operators.concat import concat
from taskflow.operators.cross_entropy import cross_entropy
from taskflow.operators.dropout import dropout
from taskflow.operators.embedding import embedding
from taskflow.operators.input import input
from taskflow.operators.linear import linear
from taskflow.operators.lstm import lstm, lstm_layer
from taskflow.operators.matmul import matmul
from taskflow.operators.reshape import reshape
from taskflow.operators.softmax import softmax
from taskflow.operators.split import split
from taskflow.operators.state import state
from taskflow.operators.transpose import transpose
from taskflow.operators.unary import relu, scale, sigmoid, tanh

__all__ = [
    "add", "concat", "cross_entropy", "dropout", "embedding", "input", "linear", "lstm", "lstm_layer", "matmul", "mul",
    "relu", "reshape", "scale", "sigmoid", "softmax", "split", "state", "sub", "tanh", "transpose",
]
from taskflow.operators.conv2d import conv2d
