"""Safe text for a terminal or a log.

Text from files and from other parties may hold escape sequences, line breaks and characters that reverse the writing
direction. Everything that writes to a terminal or a log passes such text through `visible`.
"""

from __future__ import annotations

import logging
import unicodedata

_JOINERS = "\u200c\u200d"  # part of the spelling of some languages
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, keep: str = "") -> str:
    """The text with control characters spelt out, such as \\x1b; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or _is_harmless(character) else _escape(character) for character in text
    )


class OneLine(logging.Formatter):
    """A log format in which each message is one line, whatever it quotes; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    number = ord(character)
    known = _SHORT.get(character)
    return known or (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )
