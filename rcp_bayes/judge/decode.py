"""Reading a judge's answer, of either stage: what cannot be read has a reason, never a value.

What is read, in this order:

1. The text is `content`. Reasoning in it is removed: ``<think>…</think>`` blocks, everything
   before an orphaned closing tag, everything after an opening tag that never closes. A tag inside
   a string of the answer is text. Where nothing is left, the text is the separate reasoning field:
   some servers put the whole answer there. It is not read where the token limit ended the answer,
   since then it holds drafts.
2. The answer is the first text that parses as an object, with or without a code fence around it.
   It opens with a ``{`` that a key or ``}`` follows; braces of prose are passed over, and so are
   whole objects that do not parse (a form repeated with ``<score>`` in it). An object that never
   ends ends the search: what stands inside it may be a draft. What stands behind the answer is
   ignored.
3. Inside strings, a backslash that starts no JSON escape is literal text (``\\pi``, ``\\{``). The
   ambiguous ones are text where they must be LaTeX: ``\\b`` and ``\\f`` always (nobody writes
   backspaces), ``\\n``, ``\\r`` and ``\\t`` at a LaTeX command (``\\nu``, ``\\theta``).

Labels match as a whole or not at all. Nothing is taken from prose, clamped or filled in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DECODER_VERSION = "1"

Category = Literal[
    "truncated",
    "no_json",
    "invalid_json",
    "schema",
    "incomplete",
    "out_of_range",
    "refused",
    "empty",
]
SCORE_LIMIT = 5.0  # the scale that the prompt describes ends at -5 and 5


@dataclass(frozen=True)
class Response:
    """What a server returned for one window."""

    content: str | None
    reasoning: str | None = None
    finish_reason: str | None = None


@dataclass(frozen=True)
class Decoded:
    """A valid answer, or the category of what was wrong with it.

    Attributes
    ----------
    category : str or None
        None: valid.
    scores : tuple of float, optional
        Stage A, in the order of the labels, in [-5, 5].
    ranks : tuple of float, optional
        Stage A without usable scores: 1 is best, tied documents share their mean rank.
    passes : tuple of tuples of 0/1, optional
        Stage B: criteria in rubric order for each label.
    reasons : tuple, optional
        The judge's words for each label, None where it gave none.
    """

    category: Category | None = None
    scores: tuple[float, ...] | None = None
    ranks: tuple[float, ...] | None = None
    passes: tuple[tuple[int, ...], ...] | None = None
    reasons: tuple[str | None, ...] | None = None


class _UnreadableError(Exception):
    def __init__(self, category: Category) -> None:
        super().__init__(category)
        self.category: Category = category


class _ConflictError(_UnreadableError):
    """Two answers in one: a label or key that was given two values."""

    def __init__(self) -> None:
        super().__init__("schema")


class _Object(dict):
    """A JSON object that knows whether a key was given twice with different values."""

    conflict = False


_NOT_A_NUMBER = object()  # NaN, Infinity: `json` accepts them, we do not
_LABEL_KEYS = ("label", "id", "document", "doc", "passage", "document_id", "doc_id")
_SCORE_KEYS = ("score", "rating", "relevance", "value")
_REASON_KEYS = ("reason", "reasoning", "explanation", "rationale", "comment", "justification")
_LIST_KEYS = ("scores", "ratings", "answers", "results", "documents", "passages", "judgments")
_RANKING_KEYS = ("ranking", "order", "ranked")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ANSWERS = {"yes": 1, "true": 1, "1": 1, "no": 0, "false": 0, "0": 0}
_LATEX = frozenset(
    "nu ne neq neg nabla not notin ni nmid nleq ngeq nexists natural newline nonumber nolimits "
    "newcommand nsubseteq nparallel ncong nsim rho right rangle rceil rfloor rm rightarrow ref "
    "rightleftharpoons root rvert rVert tau theta times to text textbf textit texttt textrm tan "
    "tanh top triangle tfrac tilde therefore thinspace tag".split()
)


def decode(
    stage: Literal["a", "b"],
    response: Response,
    labels: Sequence[str],
    criteria: Sequence[str] = (),
) -> Decoded:
    """Read one answer. Never raises: what cannot be read has a `category`.

    Parameters
    ----------
    stage : {"a", "b"}
    response : Response
    labels : sequence of str
        The window's labels, in the order shown.
    criteria : sequence of str
        The rubric's ids, in rubric order (Stage B).
    """
    try:
        answer, _, _ = _first_object(_text(response), response.finish_reason)
        if stage == "a":
            return _stage_a(answer, labels)
        return _stage_b(answer, labels, criteria)
    except _UnreadableError as problem:
        category = problem.category
        if response.finish_reason == "content_filter":
            category = "refused"
        return Decoded(category)


# ------------------------------------------------------------------------------ finding the object

_TAG = re.compile(r"<(/?)think(?:ing)?>", re.I)
_START = re.compile(r'\{\s*["}]')
_MARK = re.compile(r'[{}\[\]"]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*+"', re.S)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[A-Za-z]+|.|$)", re.S)


def _text(response: Response) -> str:
    cut = response.finish_reason == "length"
    for field in (response.content, None if cut else response.reasoning):
        text = _without_thoughts(field) if isinstance(field, str) else ""
        if text.strip():
            return text
    raise _UnreadableError("truncated" if cut else "empty")


def _without_thoughts(text: str) -> str:
    tags = list(_TAG.finditer(text))
    if not tags:
        return text
    start, end = _object_span(text)
    kept: list[str] = []
    at, inside = 0, False
    for tag in tags:
        if start < tag.start() < end:
            continue
        if tag.group(1):
            if not inside:  # an orphan: all before it was thought
                kept.clear()
            at, inside = tag.end(), False
        elif not inside:
            kept.append(text[at : tag.start()])
            inside = True
    return "".join(kept) if inside else "".join([*kept, text[at:]])


def _object_span(text: str) -> tuple[int, int]:
    """Where the first object stands that parses, (0, 0) without one."""
    try:
        _, start, end = _first_object(text, None)
    except _UnreadableError:
        return 0, 0
    return start, end


def _first_object(text: str, finish_reason: str | None) -> tuple[_Object, int, int]:
    """The first object that parses, and where it stands."""
    category: Category = "no_json"
    at = 0
    while opening := _START.search(text, at):
        pieces, at = _scan(text, opening.start())
        category = "invalid_json"
        if at < 0:
            break
        try:
            found = json.loads(
                "".join(pieces),
                strict=False,  # raw line breaks inside strings
                object_pairs_hook=_pairs,
                parse_int=float,
                parse_constant=lambda name: _NOT_A_NUMBER,
            )
        except (ValueError, RecursionError, MemoryError):
            continue
        assert isinstance(found, _Object)
        return found, opening.start(), at
    raise _UnreadableError("truncated" if finish_reason == "length" else category)


def _scan(text: str, start: int) -> tuple[list[str], int]:
    """The object that starts here, escapes in its strings mended, and its end; -1 without one."""
    pieces: list[str] = []
    depth, at, done = 0, start, start
    while mark := _MARK.search(text, at):
        at = mark.end()
        if mark.group() == '"':
            end = _STRING_END.match(text, at)
            if end is None:
                return pieces, -1
            if "\\" in end.group():
                pieces += [text[done:at], _ESCAPE.sub(_mended, end.group())]
                done = end.end()
            at = end.end()
        elif mark.group() in "{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return [*pieces, text[done:at]], at
    return pieces, -1


def _mended(escape: re.Match[str]) -> str:
    """A backslash sequence as JSON should have it."""
    body = escape.group(1)
    if body and body in '"\\/':
        return escape.group()
    if len(body) == 5 and body[0] == "u" and re.fullmatch("[0-9a-fA-F]{4}", body[1:]):
        return escape.group()
    if body[:1] in ("n", "r", "t") and body not in _LATEX:
        return escape.group()
    return "\\" + escape.group()


def _pairs(pairs: Iterable[tuple[str, Any]]) -> _Object:
    found = _Object()
    for key, value in pairs:
        if key in found and not _same(found[key], value):
            found.conflict = True
        found[key] = value
    return found


def _same(a: Any, b: Any) -> bool:
    """Whether a repeated value says the same: ``2`` and ``"2.0"`` do, and reasons do not matter."""
    try:
        return bool(_meaning(a) == _meaning(b))
    except RecursionError:
        return False


def _meaning(value: Any) -> Any:
    if isinstance(value, _Object):
        return {key: _meaning(v) for key, v in value.items() if key not in _REASON_KEYS}
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return (value,) if isinstance(value, bool) else value  # true is not 1


# ------------------------------------------------------------------------------- reading the object


def _stage_a(answer: _Object, labels: Sequence[str]) -> Decoded:
    try:
        entries, reasons = _entries(answer, labels)
        scores = tuple(_score(entries[label]) for label in labels)
        if not all(abs(score) <= SCORE_LIMIT for score in scores):
            raise _UnreadableError("out_of_range")
        return Decoded(scores=scores, reasons=reasons)
    except _ConflictError:
        raise
    except _UnreadableError:
        ranks = _ranks(answer, labels)
        if ranks is None:
            raise
        return Decoded(ranks=ranks)


def _stage_b(answer: _Object, labels: Sequence[str], criteria: Sequence[str]) -> Decoded:
    entries, reasons = _entries(answer, labels)
    passes = tuple(_passes(entries[label], criteria) for label in labels)
    return Decoded(passes=passes, reasons=reasons)


def _entries(
    answer: _Object, labels: Sequence[str]
) -> tuple[dict[str, Any], tuple[str | None, ...]]:
    """What the answer says of each label: a value or an object.

    Read are ``{"scores": {"D1": …}}``, ``{"scores": [{"label": "D1", …}, …]}`` (and the other
    names in `_LIST_KEYS`), and ``{"D1": …}``.
    """
    if answer.conflict:
        raise _ConflictError
    body: Any = next((answer[key] for key in _LIST_KEYS if key in answer), None)
    if body is None:
        # The answer itself is the table; words beside it are not entries.
        beside = set(_RANKING_KEYS) | set(_REASON_KEYS)
        body = _Object((key, value) for key, value in answer.items() if key not in beside)
        if not body:
            raise _UnreadableError("schema")
    pairs: list[tuple[Any, Any]] = []
    if isinstance(body, _Object):
        if body.conflict:
            raise _ConflictError
        pairs = list(body.items())
    elif isinstance(body, list):
        for entry in body:
            if not isinstance(entry, _Object):
                raise _UnreadableError("schema")
            if entry.conflict:
                raise _ConflictError
            named = [key for key in _LABEL_KEYS if key in entry]
            if not named:
                raise _UnreadableError("schema")
            rest = _Object((k, v) for k, v in entry.items() if k not in named[:1])
            pairs.append((entry[named[0]], rest))
    else:
        raise _UnreadableError("schema")
    known = set(labels)
    found: dict[str, Any] = {}
    for name, value in pairs:
        label = _label(name)
        if label not in known:
            raise _UnreadableError("schema")
        if label in found and not _same(found[label], value):
            raise _ConflictError
        found[label] = value
    if len(found) < len(known):
        raise _UnreadableError("incomplete")
    return found, tuple(_reason(found[label]) for label in labels)


def _label(name: Any) -> str | None:
    """A label as given, without brackets around it; a whole number stands for its digits."""
    if isinstance(name, float) and name.is_integer() and abs(name) < 1e6:
        return str(int(name))
    if not isinstance(name, str):
        return None
    name = name.strip()
    return name[1:-1].strip() if name[:1] == "[" and name[-1:] == "]" else name


def _reason(value: Any) -> str | None:
    if isinstance(value, _Object):
        words = next((value[key] for key in _REASON_KEYS if key in value), None)
        return words if isinstance(words, str) else None
    return None


def _score(value: Any) -> float:
    if isinstance(value, _Object):
        named = [key for key in _SCORE_KEYS if key in value]
        if value.conflict or len(named) != 1:
            raise _UnreadableError("schema")
        value = value[named[0]]
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if not isinstance(value, float) or math.isnan(value):
        raise _UnreadableError("schema")
    return value


def _passes(value: Any, criteria: Sequence[str]) -> tuple[int, ...]:
    if not isinstance(value, _Object):
        raise _UnreadableError("schema")
    inner = [key for key in ("criteria", "answers") if isinstance(value.get(key), _Object)]
    given = value[inner[0]] if inner else value
    if value.conflict or given.conflict:
        raise _UnreadableError("schema")
    if inner and any(c in value and not _same(value[c], given.get(c)) for c in criteria):
        raise _UnreadableError("schema")  # beside the table, a criterion is answered otherwise
    words = set(_REASON_KEYS) - set(criteria)
    named = {key: answer for key, answer in given.items() if key not in words}
    if set(named) - set(criteria):
        raise _UnreadableError("schema")
    if len(named) < len(criteria):
        raise _UnreadableError("incomplete")
    return tuple(_yes_or_no(named[criterion]) for criterion in criteria)


def _yes_or_no(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value in (0.0, 1.0):
        return int(value)
    if isinstance(value, str) and value.strip().lower() in _ANSWERS:
        return _ANSWERS[value.strip().lower()]
    raise _UnreadableError("schema")


def _ranks(answer: _Object, labels: Sequence[str]) -> tuple[float, ...] | None:
    """Ranks from a ``"ranking"`` list, best first, a list in it being a tie; None if incomplete."""
    if answer.conflict:
        return None
    order: Any = next((answer[key] for key in _RANKING_KEYS if key in answer), None)
    if not isinstance(order, list):
        return None
    ranks: dict[str, float] = {}
    place = 0
    for entry in order:
        group = [_label(name) for name in (entry if isinstance(entry, list) else [entry])]
        if not group or any(label not in labels or label in ranks for label in group):
            return None
        mean = place + (len(group) + 1) / 2
        for label in group:
            if label is None or label in ranks:
                return None
            ranks[label] = mean
        place += len(group)
    return tuple(ranks[label] for label in labels) if len(ranks) == len(labels) else None
