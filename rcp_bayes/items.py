"""Criterion parameters: discrimination and difficulty of each, as `items.json` holds them.

A fit writes such a file, and `fit --items` freezes one, so that only the queries' scales and
offsets are estimated (transfer, Section E.1 of the paper). The four sets that the paper prints ship
with the package and are found by name; they are used as printed, rounding included: the constraints
(discriminations sum to C, difficulties average 0) bind fitted sets only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rcp_bayes.errors import InputError
from rcp_bayes.rubric import Criterion, require_column_names

_REMEDY = "an items.json has criteria, gamma and beta of one length (see models/README.md)"


@dataclass(frozen=True, eq=False)
class Items:
    """Criteria with their parameters, in rubric order.

    Attributes
    ----------
    criteria : tuple of Criterion
    gamma : float64 array (C,)
        Discriminations, above 0, per logit.
    beta : float64 array (C,)
        Difficulties, logits of the shared scale.
    rounded : bool
        True for parameters as printed in a publication.
    priors, constraints, link, source : dict
        What was assumed, what was held, the link (knots and values where it is monotone), and where
        published parameters come from.
    more : dict
        Further keys of the file, kept as they are: `gamma_sd`, `gamma_lo`, … of a posterior fit.

    Raises
    ------
    ValueError
        Lengths that differ, no criterion, a parameter that is not finite, a discrimination that is
        not above 0, an id twice.
    """

    criteria: tuple[Criterion, ...]
    gamma: np.ndarray
    beta: np.ndarray
    rounded: bool = False
    priors: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] = field(default_factory=lambda: {"kind": "affine"})
    source: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("gamma", "beta"):
            values = np.array(getattr(self, name), dtype=np.float64)  # a copy of our own
            if values.shape != (len(self.criteria),):
                raise ValueError(
                    f"{name} has shape {values.shape}, but there are {len(self.criteria)} criteria"
                )
            if not np.isfinite(values).all():
                raise ValueError(f"{name} holds a value that is not finite")
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        if not self.criteria:
            raise ValueError("no criteria")
        if (self.gamma <= 0).any():
            raise ValueError("gamma holds a discrimination that is not above 0")
        require_column_names(self.ids)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(criterion.id for criterion in self.criteria)

    def subset(self, ids: Sequence[str]) -> Items:
        """The same parameters for these criteria alone, in this order, unchanged.

        Raises
        ------
        InputError
            An id that has no parameters here.
        """
        missing = [name for name in ids if name not in self.ids]
        if missing:
            raise InputError(
                f"no parameters for criteria {', '.join(missing)}",
                source=self.source.get("file", "items"),
                remedy=f"it has {', '.join(self.ids)}; select criteria among these",
            )
        at = [self.ids.index(name) for name in ids]
        columns = {
            key: [value[c] for c in at]
            if isinstance(value, list) and len(value) == len(self.criteria)
            else value
            for key, value in self.more.items()
        }
        return Items(
            tuple(self.criteria[c] for c in at),
            self.gamma[at],
            self.beta[at],
            self.rounded,
            self.priors,
            self.constraints,
            self.link,
            self.source,
            columns,
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `items.json`."""
        return {
            "criteria": [
                {"id": c.id, "name": c.name, "question": c.question} for c in self.criteria
            ],
            "gamma": self.gamma.tolist(),
            "beta": self.beta.tolist(),
            "rounded": self.rounded,
            "priors": self.priors,
            "constraints": self.constraints,
            "link": self.link,
            "source": self.source,
            **self.more,
        }

    @classmethod
    def from_json(cls, document: Any, *, source: str | os.PathLike[str] | None = None) -> Items:
        """Read the document of an `items.json`; `source` names it in errors.

        Raises
        ------
        InputError
            A key missing or of the wrong kind, or parameters that `Items` refuses.
        """
        if not isinstance(document, dict):
            raise InputError("not a JSON object", source=source, remedy=_REMEDY)
        rest = dict(document)
        try:
            criteria = tuple(_criterion(entry) for entry in _list(rest, "criteria"))
            gamma, beta = (
                [_number(value, name) for value in _list(rest, name)] for name in ("gamma", "beta")
            )
            rounded = rest.pop("rounded", False)
            if not isinstance(rounded, bool):
                raise ValueError("rounded is neither true nor false")
            parts = {}
            for name in ("priors", "constraints", "link", "source"):
                part = rest.pop(name, None)
                if part is None:
                    continue
                if not isinstance(part, dict):
                    raise ValueError(f"{name} is not an object")
                parts[name] = part
            return cls(criteria, np.array(gamma), np.array(beta), rounded, **parts, more=rest)
        except ValueError as error:
            raise InputError(str(error), source=source, remedy=_REMEDY) from None


def load_items(path_or_name: str | os.PathLike[str]) -> Items:
    """Criterion parameters from a file, a FIT folder, or a shipped set by name.

    A name is looked up among the shipped sets (`shipped_items`) unless a file of that name exists.

    Raises
    ------
    InputError
        No such file or set, not JSON, or not criterion parameters.
    """
    path = Path(path_or_name)
    if os.path.isdir(path):
        path = path / "items.json"
    if not os.path.exists(path):
        shipped = shipped_items()
        name = os.fspath(path_or_name).removesuffix(".json")
        if name not in shipped:
            raise InputError(
                "neither a file nor a shipped set of criteria",
                source=path_or_name,
                remedy=f"name an items.json or one of {', '.join(sorted(shipped))}",
            )
        path = shipped[name]
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InputError(reason, source=path, remedy="name an items.json") from None
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 alike
        raise InputError(f"not JSON: {error}", source=path, remedy=_REMEDY) from None
    return Items.from_json(document, source=path)


def shipped_items() -> dict[str, Path]:
    """Name -> file of the sets that come with the package (in a wheel, or in the source tree)."""
    package = Path(__file__).resolve().parent
    folder = package / "data" / "models"
    if not folder.is_dir() and (package.parent / "pyproject.toml").is_file():
        folder = package.parent / "models"
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.pop(name, None)
    if not isinstance(value, list):
        raise ValueError(f"{name} is missing or not a list")
    return value


def _number(value: Any, name: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number beyond any float
        pass
    raise ValueError(f"{name} holds {value!r:.80}, which is not a finite number")


def _criterion(entry: Any) -> Criterion:
    fields = entry if isinstance(entry, dict) else {}
    texts = [fields.get("id"), fields.get("name", ""), fields.get("question", "")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"criteria holds {entry!r}, which is not an id, name and question")
    return Criterion(*texts)
