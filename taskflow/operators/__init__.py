"""Operators, one kind in each file, and the functions that add them to a graph. Importing this fills the registry."""

from taskflow.operators.adaptive_avg_pool2d import adaptive_avg_pool2d
from taskflow.operators.argmax import argmax
from taskflow.operators.attention import attention, multi_head_attention
from taskflow.operators.avg_pool2d import avg_pool2d
from taskflow.operators.batch_norm import batch_norm
from taskflow.operators.binary import add, mul, sub
from taskflow.operators.cast import cast, to_float, to_integer
from taskflow.operators.causal_conv1d import causal_conv1d
from taskflow.operators.combine import combine
from taskflow.operators.combine_weights import combine_weights
from taskflow.operators.compare import compare
from taskflow.operators.concat import concat
from taskflow.operators.constant import constant
from taskflow.operators.conv2d import conv2d
from taskflow.operators.conv_transpose2d import conv_transpose2d
from taskflow.operators.cross_entropy import cross_entropy
from taskflow.operators.cumsum import cumsum
from taskflow.operators.detach import detach
from taskflow.operators.dispatch import dispatch
from taskflow.operators.divide_integers import divide_integers
from taskflow.operators.dropout import dropout
from taskflow.operators.einsum import einsum
from taskflow.operators.elementary import abs, cos, exp, log, pow, rsqrt, sin, sqrt
from taskflow.operators.embedding import embedding
from taskflow.operators.erf import erf
from taskflow.operators.expand import expand
from taskflow.operators.expert_linear import expert_linear
from taskflow.operators.expert_places import expert_places
from taskflow.operators.extreme import amax
from taskflow.operators.fft import fft
from taskflow.operators.filter2d import filter2d
from taskflow.operators.flash_attention import flash_attention
from taskflow.operators.free_weight import add_weight, expand_weight, mul_weight
from taskflow.operators.full_like import full_like
from taskflow.operators.gather import gather
from taskflow.operators.grid_sample import grid_sample
from taskflow.operators.group_norm import group_norm
from taskflow.operators.gru import gru
from taskflow.operators.hard import clamp, hardsigmoid, hardswish, hardtanh, leaky_relu
from taskflow.operators.input import input
from taskflow.operators.layer_norm import layer_norm
from taskflow.operators.linear import linear
from taskflow.operators.linear_attention import linear_attention
from taskflow.operators.logcumsumexp import logcumsumexp
from taskflow.operators.logsumexp import logsumexp
from taskflow.operators.lstm import lstm, lstm_layer
from taskflow.operators.mask_padding import mask_padding
from taskflow.operators.masked_scatter import masked_scatter
from taskflow.operators.matmul import matmul
from taskflow.operators.max_pool2d import max_pool2d
from taskflow.operators.mse_loss import mse_loss
from taskflow.operators.narrow import narrow, select
from taskflow.operators.noise import noise
from taskflow.operators.pad import pad
from taskflow.operators.per_label import per_label
from taskflow.operators.positional_encoding import positional_encoding
from taskflow.operators.reduce import mean, sum
from taskflow.operators.reshape import flatten, reshape
from taskflow.operators.rms_norm import rms_norm
from taskflow.operators.rotary import rotary
from taskflow.operators.routed_linear import routed_linear
from taskflow.operators.scatter_add import scatter_add
from taskflow.operators.scatter_reduce import scatter_reduce
from taskflow.operators.selective_scan import selective_scan
from taskflow.operators.silu import silu
from taskflow.operators.slogdet import slogdet
from taskflow.operators.smooth import elu, mish, softplus
from taskflow.operators.softmax import softmax
from taskflow.operators.split import split
from taskflow.operators.state import state
from taskflow.operators.step import step
from taskflow.operators.stochastic_depth import stochastic_depth
from taskflow.operators.swiglu import swiglu
from taskflow.operators.top_k import top_k
from taskflow.operators.top_k_routing import top2_gating, top_k_routing
from taskflow.operators.transpose import transpose
from taskflow.operators.unary import gelu, relu, scale, shift, sigmoid, tanh
from taskflow.operators.where import where

__all__ = [
    "abs", "adaptive_avg_pool2d", "add", "add_weight", "amax", "argmax", "attention", "avg_pool2d", "batch_norm",
    "cast", "causal_conv1d", "clamp", "combine", "combine_weights", "compare", "concat", "constant", "conv2d",
    "conv_transpose2d", "cos", "cross_entropy", "cumsum", "detach", "dispatch", "divide_integers", "dropout",
    "einsum", "elu", "embedding", "erf", "exp", "expand", "expand_weight", "expert_linear", "expert_places", "fft",
    "filter2d", "flash_attention", "flatten", "full_like", "gather", "gelu", "grid_sample", "group_norm", "gru",
    "hardsigmoid", "hardswish", "hardtanh", "input", "layer_norm", "leaky_relu", "linear", "linear_attention",
    "log", "logcumsumexp", "logsumexp", "lstm", "lstm_layer", "mask_padding", "masked_scatter", "matmul",
    "max_pool2d", "mean", "mish", "mse_loss", "mul", "mul_weight", "multi_head_attention", "narrow", "noise", "pad",
    "per_label", "positional_encoding", "pow", "relu", "reshape", "rms_norm", "rotary", "routed_linear", "rsqrt",
    "scale", "scatter_add", "scatter_reduce", "select", "selective_scan", "shift", "sigmoid", "silu", "sin",
    "slogdet", "softmax", "softplus", "split", "sqrt", "state", "step", "stochastic_depth", "sub", "sum", "swiglu",
    "tanh", "to_float", "to_integer", "top2_gating", "top_k", "top_k_routing", "transpose", "where",
]
