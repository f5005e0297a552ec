"""The task API: regions, index launches over partitions, futures, and traces that are replayed."""
