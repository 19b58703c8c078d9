"""Commands that consist of commands."""

from __future__ import annotations

import click


class OrderedGroup(click.Group):
    """A group whose help lists the commands in the order in which they were added, most used first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands; click would sort them."""
        return list(self.commands)
