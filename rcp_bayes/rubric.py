"""The rubric: the yes/no criteria that a judge answers about a document, and its fingerprint.

The shipped rubric has the ids and names of the paper's Table 1; the questions are in our own words.
Another rubric is a YAML file, a list of entries (or the same list under ``criteria:``)::

    - id: C1
      name: Topical Relevance
      question: Is the document about what the query asks?

Difficulty should rise in file order: `rcp-bayes diagnose` checks that order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcp_bayes.errors import InputError

FIELDS = ("id", "name", "question")

# Column names of the Stage B table that are not criteria (shared/formats.md).
RESERVED_IDS = frozenset(
    ("dataset", "query_id", "window_id", "doc_id", "phase", "judge", "position", "invalid")
)


@dataclass(frozen=True)
class Criterion:
    """One yes/no question; `id` names its column in Stage B."""

    id: str
    name: str = ""
    question: str = ""


def id_problem(criterion_id: str) -> str | None:
    """Why an id cannot name a criterion's column, or None where it can."""
    if criterion_id in RESERVED_IDS:
        return f"criterion id {criterion_id!r} is the name of another column of Stage B"
    if not criterion_id or any(mark.isspace() or mark == "," for mark in criterion_id):
        return f"criterion id {criterion_id!r} is empty, or holds a space or a comma"
    return None


def require_column_names(ids: Sequence[str]) -> None:
    """Raise ValueError where an id cannot name a column, or occurs twice."""
    for criterion_id in ids:
        if problem := id_problem(criterion_id):
            raise ValueError(problem)
    if len(set(ids)) < len(ids):
        raise ValueError(f"a criterion id occurs twice in {', '.join(ids)}")


@dataclass(frozen=True)
class Rubric:
    """Criteria in rubric order, easiest first.

    Raises
    ------
    ValueError
        No criterion, an id twice, or an id that cannot name a column of Stage B.
    """

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        if not self.criteria:
            raise ValueError("a rubric needs at least one criterion")
        require_column_names(self.ids)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(criterion.id for criterion in self.criteria)

    @property
    def text(self) -> str:
        """Ids, names and questions in order, as JSON; equal for equal rubrics."""
        rows = [[criterion.id, criterion.name, criterion.question] for criterion in self.criteria]
        return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `text`: what answers are stored under."""
        return hashlib.sha256(self.text.encode()).hexdigest()


DEFAULT_RUBRIC = Rubric(
    (
        Criterion("C1", "Topical Relevance", "Is the document about the subject of the query?"),
        Criterion(
            "C2",
            "Information Utility",
            "Does the document give concrete information that helps with what the query asks?",
        ),
        Criterion(
            "C3",
            "Entity/Detail Match",
            "Does the document mention and treat the very entity or detail the query is about?",
        ),
        Criterion(
            "C4",
            "Direct Answer",
            "Does the document state outright an answer to the main question of the query?",
        ),
        Criterion(
            "C5",
            "Thorough Treatment",
            "Does the document go into the subject of the query at depth, beyond its surface?",
        ),
    )
)


def criteria_named(ids: Sequence[str]) -> tuple[Criterion, ...]:
    """Criteria with these ids: the shipped ones in full, others without name and question."""
    shipped = {criterion.id: criterion for criterion in DEFAULT_RUBRIC.criteria}
    return tuple(shipped.get(name, Criterion(name)) for name in ids)


def load_rubric(path: str | os.PathLike[str] | None = None) -> Rubric:
    """The rubric in a YAML file, or the shipped one.

    Values are read as text exactly as written (``007`` stays ``007``, ``yes`` stays ``yes``).

    Raises
    ------
    InputError
        With file, line and field: not YAML, no entries, a field missing, empty, repeated or
        unknown, an id twice or one that cannot name a column of Stage B.
    """
    if path is None:
        return DEFAULT_RUBRIC
    entries = _entries(Path(path))
    criteria: list[Criterion] = []
    for line, entry in entries:
        for field in FIELDS:
            if not entry.get(field):
                raise InputError(
                    "missing or empty",
                    source=path,
                    line=line,
                    column=field,
                    remedy="each criterion needs id, name and question",
                )
        criterion = Criterion(**entry)
        problem = id_problem(criterion.id)
        if criterion.id in {earlier.id for earlier in criteria}:
            problem = f"criterion id {criterion.id!r} occurs twice"
        if problem:
            raise InputError(
                problem, source=path, line=line, column="id", remedy="choose another id"
            )
        criteria.append(criterion)
    return Rubric(tuple(criteria))


def _entries(path: Path) -> list[tuple[int, dict[str, str]]]:
    """(line, fields) of each entry, from YAML's node tree: it keeps lines and text."""
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InputError(reason, source=path, remedy="name a YAML file") from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", source=path, remedy="name a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"not YAML: {getattr(error, 'problem', None) or error}",
            source=path,
            line=None if mark is None else mark.line + 1,
            remedy="quote text that holds a colon or a quotation mark",
        ) from None
    if isinstance(root, yaml.MappingNode):
        found = [value for key, value in root.value if key.value == "criteria"]
        root = found[0] if len(found) == 1 else None
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise InputError(
            "no criteria", source=path, remedy="write a list of entries with id, name, question"
        )
    return [(node.start_mark.line + 1, _fields(node, path)) for node in root.value]


def _fields(node: Any, path: Path) -> dict[str, str]:
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise InputError(
            "not an entry", source=path, line=line, remedy="each entry has id, name and question"
        )
    fields: dict[str, str] = {}
    for key, value in node.value:
        name, place = str(key.value), key.start_mark.line + 1
        if name not in FIELDS or name in fields:
            problem = "field given twice" if name in fields else "unknown field"
            raise InputError(
                problem, source=path, line=place, column=name, remedy="use id, name and question"
            )
        if not isinstance(value, yaml.ScalarNode) or value.tag == "tag:yaml.org,2002:null":
            raise InputError(
                "not a text", source=path, line=place, column=name, remedy="write one text"
            )
        fields[name] = value.value.strip()
    return fields
