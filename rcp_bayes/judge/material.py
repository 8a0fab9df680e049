"""A pool folder as the loop needs it: queries with their candidates, and the texts to show."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from rcp_bayes.errors import UsageError
from rcp_bayes.io import PoolFolder, read_pool
from rcp_bayes.judge.stored import digest_of
from rcp_bayes.tables import DEFAULT_DATASET

Document = tuple[str | None, str]  # title, text


@dataclass(frozen=True)
class PoolQuery:
    """A query and its candidates.

    ``place`` is its 0-based place in the whole pool, whatever the shard, so that joined shards
    stand in pool order.
    """

    dataset: str
    query_id: str
    place: int
    text: str
    instruction: str | None
    documents: tuple[str, ...]


class Material:
    """Queries in pool order and the texts of their candidates.

    Parameters
    ----------
    pool : PoolFolder or path

    Raises
    ------
    InputError
        The pool is unusable.
    """

    def __init__(self, pool: PoolFolder | str | os.PathLike[str]) -> None:
        folder = pool if isinstance(pool, PoolFolder) else read_pool(pool)
        self._texts = {
            key: (title, text)
            for key, title, text in zip(
                _keys(folder.corpus, "doc_id"),
                _optional(folder.corpus["title"]),
                folder.corpus["text"],
                strict=True,
            )
        }
        self._by_dataset = set(folder.corpus["dataset"]) != {DEFAULT_DATASET}
        asked = {
            key: (text, instruction)
            for key, text, instruction in zip(
                _keys(folder.queries, "query_id"),
                folder.queries["text"],
                _optional(folder.queries["instruction"]),
                strict=True,
            )
        }
        queries_by_dataset = set(folder.queries["dataset"]) != {DEFAULT_DATASET}
        pools: dict[tuple[str, str], list[str]] = {}
        c = folder.candidates
        for dataset, query, document in zip(c["dataset"], c["query_id"], c["doc_id"], strict=True):
            pools.setdefault((str(dataset), str(query)), []).append(str(document))
        self.queries: list[PoolQuery] = []
        for place, ((dataset, query), documents) in enumerate(pools.items()):
            text, instruction = asked[(dataset if queries_by_dataset else "", query)]
            self.queries.append(
                PoolQuery(dataset, query, place, text, instruction, tuple(documents))
            )

    def document(self, dataset: str, doc_id: str) -> Document:
        """Title (None without one) and text."""
        return self._texts[(dataset if self._by_dataset else "", doc_id)]

    def documents(self, query: PoolQuery, doc_ids: Sequence[str]) -> list[Document]:
        return [self.document(query.dataset, name) for name in doc_ids]

    def digest(self, query: PoolQuery) -> str:
        """SHA-256 of all that is shown of a query: its texts and its candidates, in pool order."""
        shown = [[name, self._text_digests[self._key(query, name)]] for name in query.documents]
        return digest_of([query.text, query.instruction, shown])

    def _key(self, query: PoolQuery, doc_id: str) -> tuple[str, str]:
        return (query.dataset if self._by_dataset else "", doc_id)

    @cached_property
    def _text_digests(self) -> dict[tuple[str, str], str]:
        return {
            key: hashlib.blake2b(
                f"{title or ''}\x00{text}".encode("utf-8", "surrogatepass"), digest_size=16
            ).hexdigest()
            for key, (title, text) in self._texts.items()
        }


def pool_notes(pool: PoolFolder) -> list[str]:
    """What a reader of a pool may not expect: rows folded, queries left out, texts missing."""
    notes = []
    folded = pool.candidates.attrs.get("counts", {}).get("folded", 0)
    if folded:
        notes.append(f"{_some(folded, 'candidate')} named twice for a query, judged once")
    keys = ["dataset", "query_id"]
    if set(pool.queries["dataset"]) == {DEFAULT_DATASET}:
        keys = ["query_id"]
    asked = pd.MultiIndex.from_frame(pool.queries[keys]).isin(
        pd.MultiIndex.from_frame(pool.candidates[keys])
    )
    if not asked.all():
        left = pool.queries["query_id"][~asked]
        notes.append(f"{_some(len(left), 'query')} without candidates, not judged: {_names(left)}")
    empty = pool.queries["query_id"][asked & (pool.queries["text"].str.strip() == "")]
    if len(empty):
        notes.append(f"{_some(len(empty), 'query')} without text: {_names(empty)}")
    return notes


def _some(count: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count} {noun if count == 1 else plural}"


def _names(column: pd.Series) -> str:
    return ", ".join(map(repr, column[:3])) + (", …" if len(column) > 3 else "")


def in_shard(query: PoolQuery, shard: tuple[int, int] | None) -> bool:
    """Whether a query belongs to part i of n, by a hash of its name that no other query moves."""
    if shard is None:
        return True
    part, parts = shard
    return int(digest_of([query.dataset, query.query_id]), 16) % parts == part - 1


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """``"i/n"`` with 1 <= i <= n as two numbers.

    Raises
    ------
    UsageError
        It is something else.
    """
    if text is None:
        return None
    part, slash, parts = text.partition("/")
    if slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise UsageError(f"--shard {text}: write part i of n as i/n, from 1/n to n/n")


def _keys(frame: pd.DataFrame, name: str) -> Iterator[tuple[str, str]]:
    plain = set(frame["dataset"]) == {DEFAULT_DATASET}  # BEIR texts name no dataset
    for dataset, key in zip(frame["dataset"], frame[name], strict=True):
        yield ("" if plain else str(dataset), str(key))


def _optional(column: pd.Series) -> Iterator[str | None]:
    for value in column:
        yield value if isinstance(value, str) and value.strip() else None
