"""Groups of commands: their order, their help by task, and their help when called without a command."""

from __future__ import annotations

import click

OTHER = "Commands"


class OrderedGroup(click.Group):
    """A group whose help lists commands by task, in the order they were added; without a command it prints its help.

    Unlike in click, a command's summary is never cut off: its first sentence is wrapped instead.
    """

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args, **attributes)  # type: ignore[arg-type]
        self.tasks: dict[str, list[str]] = {}

    def add_task(self, title: str, *commands: click.Command) -> None:
        """Add commands under a heading of the help."""
        for command in commands:
            self.add_command(command)
        self.tasks[title] = [str(command.name) for command in commands]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The command names, unsorted."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each task."""
        placed = {name for names in self.tasks.values() for name in names}
        rest = [name for name in self.commands if name not in placed]
        width = max(map(len, self.commands), default=0)
        for title, names in {**self.tasks, OTHER: rest}.items():
            rows = [(name.ljust(width), first_sentence(self.commands[name].help or "")) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help on stdout if no command is given, unless the group does something by itself."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


def first_sentence(text: str) -> str:
    """The first sentence of a help text."""
    words = " ".join(text.split())
    end = words.find(". ")
    return words if end < 0 else words[: end + 1]
