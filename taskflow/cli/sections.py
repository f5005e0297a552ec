"""Sections of a command's help: what most people use first, then constraints, then what few need."""

from __future__ import annotations

import click

CONSTRAINTS = frozenset({"constraints_file", "pins", "pin_syncs", "forbids", "limits"})
ADVANCED = frozenset({
    "costs", "algorithm", "degrees", "placements", "reduction", "uneven", "memory", "workers", "debug", "products",
    "checkpoint_time", "restart_time", "repair_time", "slower", "expert_imbalance",
})
"""Names of parameters."""


class SectionedCommand(click.Command):
    """Command whose rarely used options stand under headings of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], "Constraints": [], "Advanced": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                name = parameter.name or ""
                section = "Constraints" if name in CONSTRAINTS else "Advanced" if name in ADVANCED else "Options"
                rows[section].append(record)
        for section, some in rows.items():
            if some:
                with formatter.section(section):
                    formatter.write_dl(some)
