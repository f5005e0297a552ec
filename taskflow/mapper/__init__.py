"""Mappers, strategies and configurations: how operators are cut and where their pieces run."""

from taskflow.mapper.again import AGAIN_STATES, HadAgain, again_words, level_again, recomputed
from taskflow.mapper.alike import (
    Cut,
    Match,
    alike,
    by_class,
    by_name,
    by_name_or_size,
    config_like,
    cut_like,
    degrees_like,
    follow,
)
from taskflow.mapper.buckets import BucketLayer, bucket_word, default_bucket, divided
from taskflow.mapper.choose import MAPPERS, choose
from taskflow.mapper.config import Exchange, OpConfig, copy_on_each, ranges, writes_together
from taskflow.mapper.expert import Expert
from taskflow.mapper.fitting import fitted
from taskflow.mapper.hybrid import HybridParallel, samples
from taskflow.mapper.joined_parts import joined_parts
from taskflow.mapper.layers import described_by_layers, layer_numbers, numbered_layer
from taskflow.mapper.mapper import CopyRequest, Mapper, map_graph
from taskflow.mapper.megatron import Megatron, attends, multiplies, node_size, suits
from taskflow.mapper.narrow_products import NARROW_PRODUCTS, NarrowProducts, narrow_rate
from taskflow.mapper.notation import parse_config, parse_ranges, parse_sync
from taskflow.mapper.pipeline import Pipeline, in_micro_batches, sample_dim
from taskflow.mapper.pipeline_schedules import Pass, PassKind, PipelineSchedule, rank_passes
from taskflow.mapper.placed_devices import placed_devices
from taskflow.mapper.plan import HybridPlan, is_plan, parse_plan
from taskflow.mapper.plan_of import plan_of
from taskflow.mapper.plan_words import WORDS
from taskflow.mapper.report import MeasuredTask, Profile
from taskflow.mapper.rules import DataParallel, ModelParallel, RandomMapper, RoundRobin, cut_only, depths
from taskflow.mapper.stages import stages_of
from taskflow.mapper.strategy import SUMS, Strategy
from taskflow.mapper.strategy_file import (
    MadeFrom,
    as_content,
    config_entry,
    for_processors,
    from_content,
    load,
    paths_of,
    read_strategy,
    save,
    search_of,
)
from taskflow.mapper.sync import (
    BLOCK,
    CollectiveSync,
    MessageSync,
    ShardedSync,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    sync_words,
)
from taskflow.mapper.units import blocks_of, gather_units, summed_last, units_of

__all__ = [
    "AGAIN_STATES",
    "BLOCK",
    "MAPPERS",
    "NARROW_PRODUCTS",
    "SUMS",
    "WORDS",
    "BucketLayer",
    "CollectiveSync",
    "CopyRequest",
    "Cut",
    "DataParallel",
    "Exchange",
    "Expert",
    "HadAgain",
    "HybridParallel",
    "HybridPlan",
    "MadeFrom",
    "Mapper",
    "Match",
    "MeasuredTask",
    "Megatron",
    "MessageSync",
    "ModelParallel",
    "NarrowProducts",
    "OpConfig",
    "Pass",
    "PassKind",
    "Pipeline",
    "PipelineSchedule",
    "Profile",
    "RandomMapper",
    "RoundRobin",
    "ShardedSync",
    "Strategy",
    "Sync",
    "SyncAlgorithm",
    "UpdatePlacement",
    "again_words",
    "alike",
    "as_content",
    "attends",
    "blocks_of",
    "bucket_word",
    "by_class",
    "by_name",
    "by_name_or_size",
    "choose",
    "config_entry",
    "config_like",
    "copy_on_each",
    "cut_like",
    "cut_only",
    "default_bucket",
    "degrees_like",
    "depths",
    "described_by_layers",
    "divided",
    "fitted",
    "follow",
    "for_processors",
    "from_content",
    "gather_units",
    "in_micro_batches",
    "is_plan",
    "joined_parts",
    "layer_numbers",
    "level_again",
    "load",
    "map_graph",
    "multiplies",
    "narrow_rate",
    "node_size",
    "numbered_layer",
    "parse_config",
    "parse_plan",
    "parse_ranges",
    "parse_sync",
    "paths_of",
    "placed_devices",
    "plan_of",
    "ranges",
    "rank_passes",
    "read_strategy",
    "recomputed",
    "sample_dim",
    "samples",
    "save",
    "search_of",
    "stages_of",
    "suits",
    "summed_last",
    "sync_words",
    "units_of",
    "writes_together",
]
