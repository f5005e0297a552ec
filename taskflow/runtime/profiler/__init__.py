"""Traces of a run: what every rank did and when, beside the prediction."""

from taskflow.runtime.profiler.clock_offsets import Clock
from taskflow.runtime.profiler.compare import Differences, Row, differences
from taskflow.runtime.profiler.events import predicted_document
from taskflow.runtime.profiler.part import part_document
from taskflow.runtime.profiler.recording import Subject, read_trace, write_trace
from taskflow.runtime.profiler.tracer import TraceError, Tracer, profile_of, run_observed
