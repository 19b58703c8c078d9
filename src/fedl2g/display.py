"""Text for a terminal or a log: what a terminal would obey, or a reader be misled by, is made visible instead.

Text from files and from other parties may hold escape sequences, line breaks and characters that reverse the direction
of writing. Whatever writes to a terminal or a log passes its text through `visible`.
"""

from __future__ import annotations

import logging
import unicodedata

_JOINERS = "\u200c\u200d"  # belong to the spelling of some languages
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, keep: str = "") -> str:
    """The text with control characters spelt out, such as \\x1b; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(one if one in keep or _is_shown(one) else _spelt(one) for one in text)


class OneLine(logging.Formatter):
    """A log format whose messages are one line each, whatever they quote; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def _is_shown(one: str) -> bool:
    return one.isprintable() or one in _JOINERS or unicodedata.category(one) == "Zs"


def _spelt(one: str) -> str:
    number = ord(one)
    known = _SHORT.get(one)
    return known or (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )
