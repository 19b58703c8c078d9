"""Texts as token ids, by hashing: no vocabulary is learnt from the data, so none can leave a client."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedl2g.schema import VOCABULARY, Schema

MAX_TOKENS = 256
"""Longer texts are cut."""
BATCH = 4096
_TOKEN = re.compile(r"\w+|[^\w\s]")


def text_schema(tokens: int) -> Schema:
    """The schema of hashed texts of up to this many tokens."""
    return Schema("text", (tokens,), vocabulary=VOCABULARY)


def tokens_of(text: str) -> list[str]:
    """The words of a text in lower case, and its punctuation marks; a text without any is one empty token."""
    return _TOKEN.findall(text.lower())[:MAX_TOKENS] or [""]


@lru_cache(maxsize=1 << 18)
def token_id(token: str) -> int:
    """The id of a token: a hash from 1 to VOCABULARY - 1, the same on every machine."""
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (VOCABULARY - 1)


def longest(texts: Iterable[str]) -> int:
    """The most tokens of any text, at most MAX_TOKENS."""
    return max((len(tokens_of(text)) for text in texts), default=1)


def encode(texts: Sequence[str], tokens: int) -> Iterator[NDArray[np.int16]]:
    """The ids of texts in batches (n, tokens): cut at `tokens`, or filled with 0."""
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        ids = np.zeros((len(part), tokens), dtype=np.int16)
        for row, text in zip(ids, part, strict=True):
            found = [token_id(token) for token in tokens_of(text)[:tokens]]
            row[: len(found)] = found
        yield ids
