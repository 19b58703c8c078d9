"""Groups of commands."""

from __future__ import annotations

import click


class OrderedGroup(click.Group):
    """A group whose help lists commands in the order they were added, most used first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The command names, unsorted."""
        return list(self.commands)
