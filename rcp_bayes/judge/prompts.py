"""What a judge is asked: prompt files, documents cut to a budget, the form of the answer.

A prompt file is plain text with the marks ``{query}``, ``{documents}`` and, where wanted,
``{instruction}``, ``{count}``, ``{form}`` (an example of the answer's JSON) and, for Stage B,
``{criteria}``. Documents carry labels of this window only (``D1`` … ), so that no id leaks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rcp_bayes.errors import InputError
from rcp_bayes.rubric import Rubric

Stage = Literal["a", "b"]
BUDGET_CHARACTERS = 4000  # of one document, about a thousand tokens
_SHIPPED = Path(__file__).parents[1] / "data" / "prompts"
_REQUIRED = {"a": ("query", "documents"), "b": ("query", "criteria", "documents")}
_MARK = re.compile(r"\{(query|documents|instruction|count|form|criteria)\}")
_BLOCK = re.compile(r"<(/?)(documents?|query|instruction|criteria)\b")
_SENTENCE_END = re.compile(r"[.!?。！？][\"')\]”’]*(?=\s)|[。！？]")


@dataclass(frozen=True)
class Prompts:
    """The prompt texts of both stages."""

    stage_a: str
    stage_b: str

    def text(self, stage: Stage) -> str:
        return self.stage_a if stage == "a" else self.stage_b


@dataclass(frozen=True)
class Rendered:
    """One window, ready to be asked.

    Attributes
    ----------
    messages : list of dict
        Chat messages: one of the user.
    labels : tuple of str
        The window's labels, in the order of the documents.
    schema : dict
        JSON schema of the answer.
    cuts : tuple of dict
        ``label, characters, kept`` of each document that was cut to the budget.
    """

    messages: list[dict[str, str]]
    labels: tuple[str, ...]
    schema: dict[str, Any]
    cuts: tuple[dict[str, Any], ...]


def load_prompts(path_a: str | Path | None = None, path_b: str | Path | None = None) -> Prompts:
    """The shipped prompts, or those of files.

    Raises
    ------
    InputError
        A file cannot be read, or lacks a mark that its stage needs.
    """
    return Prompts(_load("a", path_a), _load("b", path_b))


def _load(stage: Stage, path: str | Path | None) -> str:
    source = Path(path) if path is not None else _SHIPPED / f"stage_{stage}.txt"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=source) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", source=source, remedy="save it as UTF-8") from None
    missing = [name for name in _REQUIRED[stage] if f"{{{name}}}" not in text]
    if missing:
        marks = ", ".join(f"{{{name}}}" for name in missing)
        raise InputError(f"lacks {marks}", source=source, remedy="say where these belong")
    return text


def render(
    stage: Stage,
    prompts: Prompts,
    rubric: Rubric,
    query: str,
    instruction: str | None,
    documents: Sequence[tuple[str | None, str]],
    *,
    budget: int = BUDGET_CHARACTERS,
) -> Rendered:
    """One window as chat messages.

    Parameters
    ----------
    documents : sequence of (title or None, text)
        In the order shown.
    budget : int
        Characters of title and text together that are shown of a document.
    """
    labels = window_labels(len(documents))
    blocks, cuts = [], []
    for label, (title, text) in zip(labels, documents, strict=True):
        whole = joined(title, text)
        shown = cut_text(whole, budget)
        if shown != whole:
            cuts.append({"label": label, "characters": len(whole), "kept": len(shown)})
        blocks.append(f'<document label="{label}">\n{_inert(shown)}\n</document>')
    words = {
        "query": _inert(query),
        "instruction": (
            f"<instruction>\n{_inert(instruction)}\n</instruction>" if instruction else ""
        ),
        "documents": "\n".join(blocks),
        "count": str(len(documents)),
        "criteria": "\n".join(f"{c.id} ({c.name}): {c.question}" for c in rubric.criteria),
        "form": _form(stage, labels, rubric),
    }
    # One pass: a mark that stands in a query or document stays text.
    text = _MARK.sub(lambda mark: words[mark.group(1)], prompts.text(stage))
    schema = answer_schema(stage, labels, rubric.ids)
    return Rendered([{"role": "user", "content": text}], labels, schema, tuple(cuts))


def _inert(text: str) -> str:
    """The text, unable to open or end a block of the prompt."""
    return _BLOCK.sub(r"<\1 \2", text)


@cache
def window_labels(size: int) -> tuple[str, ...]:
    """The labels of a window's documents, in the order shown."""
    return tuple(f"D{i + 1}" for i in range(size))


def joined(title: str | None, text: str) -> str:
    """A document as it is shown, before any cut."""
    return f"{title}\n{text}" if title else text


def cut_text(text: str, budget: int) -> str:
    """The text, cut at the last sentence end, else at the last space, within the budget."""
    if len(text) <= budget:
        return text
    head = text[: max(budget - len(" […]"), 1)]
    sentences = [match.end() for match in _SENTENCE_END.finditer(text, 0, len(head) + 1)]
    end = next((at for at in reversed(sentences) if at <= len(head)), 0)
    if end < len(head) // 2:  # a sentence so long that most of the budget would be lost
        end = max(head.rfind(" "), head.rfind("\n"))
    if end < len(head) // 2:
        end = len(head)
    return head[:end].rstrip() + " […]"


def _form(stage: Stage, labels: Sequence[str], rubric: Rubric) -> str:
    if stage == "a":
        example = ", ".join(f'"{label}": <score>' for label in labels)
        return '{"scores": {' + example + "}}"
    answers = ", ".join(f'"{name}": <0 or 1>' for name in rubric.ids)
    example = ", ".join(f'"{label}": {{{answers}}}' for label in labels)
    return '{"answers": {' + example + "}}"


@cache
def answer_schema(
    stage: Stage, labels: tuple[str, ...], criteria: tuple[str, ...]
) -> dict[str, Any]:
    """JSON schema of an answer, in the subset that strict structured output accepts."""
    value: dict[str, Any] = {"type": "number"}
    if stage == "b":
        value = _closed(criteria, {"type": "integer", "enum": [0, 1]})
    return _closed(("scores" if stage == "a" else "answers",), _closed(labels, value))


def _closed(names: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    """An object that has exactly these keys."""
    return {
        "type": "object",
        "properties": dict.fromkeys(names, value),
        "required": list(names),
        "additionalProperties": False,
    }
