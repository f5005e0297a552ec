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
from taskflow.mapper.blocks import block_count, block_numbers, block_of, described_by_blocks
from taskflow.mapper.buckets import BucketLayer, bucket_word, default_bucket, divided
from taskflow.mapper.choose import MAPPERS, choose
from taskflow.mapper.config import Exchange, OpConfig, copy_on_each, ranges, writes_together
from taskflow.mapper.expert import Expert
from taskflow.mapper.hybrid import HybridParallel, samples
from taskflow.mapper.joined_parts import joined_parts
from taskflow.mapper.mapper import CopyRequest, Mapper, map_graph
from taskflow.mapper.megatron import (
    Megatron,
    attends,
    has_attention,
    heads_dealt,
    is_attention,
    multiplies,
    node_size,
    suits,
)
from taskflow.mapper.narrow_products import NARROW_PRODUCTS, NarrowProducts, narrow_rate
from taskflow.mapper.notation import parse_config, parse_ranges, parse_sync
from taskflow.mapper.pipeline import Pipeline, in_micro_batches, sample_dim
from taskflow.mapper.pipeline_schedules import Pass, PassKind, PipelineSchedule, rank_passes
from taskflow.mapper.placed_devices import placed_devices
from taskflow.mapper.plan import HybridPlan, is_plan, parse_plan, plan_with
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

# What documents name; the rest is for other packages of taskflow.
__all__ = [
    "CollectiveSync",
    "CopyRequest",
    "DataParallel",
    "HadAgain",
    "HybridParallel",
    "Mapper",
    "MessageSync",
    "OpConfig",
    "Pipeline",
    "PipelineSchedule",
    "Profile",
    "ShardedSync",
    "Strategy",
    "Sync",
    "SyncAlgorithm",
    "UpdatePlacement",
    "choose",
    "in_micro_batches",
    "load",
    "map_graph",
    "parse_config",
    "parse_plan",
    "save",
]
