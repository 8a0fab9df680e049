"""The outputs of a fit: one folder, written whole or not at all.

``fit.json`` goes away first and comes last, so that a folder that has one is complete.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.files import read_content, read_parts
from rcp_bayes.io import atomic_file, frame_of, write_table
from rcp_bayes.records import FIT_QUERIES, labels_schema
from rcp_bayes.tables import Schema, table_of, unite

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.draws import GainDraws
    from rcp_bayes.items import Items

LABELS, QUERIES, ITEMS, INFO, POSTERIOR = (
    "labels.parquet",
    "queries.parquet",
    "items.json",
    "fit.json",
    "posterior.nc",
)
_QUERY = ["dataset", "query_id"]
_NOT_SAVED = "nothing was saved; please report it with the judgments' counts"


@dataclass(frozen=True, eq=False)
class Fit:
    """Calibrated labels.

    Attributes
    ----------
    labels : pd.DataFrame
        One row for each judged document: ``dataset, query_id, doc_id, pool_position, n_windows,
        n_placements, bt, theta, gain, pass_share, passes_<criterion>``; after a posterior fit also
        ``ability, ability_sd, theta_sd, gain_sd, gain_lo, gain_hi``. `bt` is centred per query, in
        logits; `theta` is on the rubric's scale, in logits; `gain` lies in [0, 1). NaN: a document
        without a Stage A window, or a query without Stage B answers.
    queries : pd.DataFrame
        One row for each query: ``dataset, query_id, tau, alpha, n_documents, n_invalid_a,
        n_invalid_b``; after a posterior fit also ``tau_sd, tau_lo, tau_hi`` and those of `alpha`.
    items : Items
    info : dict
        What ``fit.json`` holds.
    draws : GainDraws, optional
        Draws of the gains, their columns as the rows of `labels`; after a posterior fit.
    """

    labels: pd.DataFrame
    queries: pd.DataFrame
    items: Items
    info: dict[str, Any]
    draws: GainDraws | None = None


def prepare_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and see that files can be written in it.

    Raises
    ------
    InputError
        It is a file, or cannot be written.
    """
    folder = Path(path)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError("is a file, not a folder", source=path, remedy="name another place")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be written ({reason})", source=path) from None
    return folder


def write_fit(fit: Fit, path: str | os.PathLike[str]) -> None:
    """Write a FIT folder; an older fit in it is replaced, its posterior included.

    Raises
    ------
    InputError
        An estimate is NaN where the answers are there, or infinite; or the place cannot be written.
        Nothing of the new fit is there then under its final name.
    """
    labels = _checked(fit.labels, labels_schema(fit.items.ids), "labels")
    queries = _checked(fit.queries, FIT_QUERIES, "queries")
    _require_estimates(fit)
    items, info = _strict_json(fit.items.to_json(), ITEMS), _strict_json(fit.info, INFO)
    folder = prepare_folder(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".fit-", dir=folder) as scratch:
            new = Path(scratch)
            write_table(labels, new / LABELS)
            write_table(queries, new / QUERIES)
            for name, text in ((ITEMS, items), (INFO, info)):
                with atomic_file(new / name, "w") as file:
                    file.write(text)
            for name in (INFO, POSTERIOR):
                (folder / name).unlink(missing_ok=True)
            for name in (LABELS, QUERIES, ITEMS, INFO):
                os.replace(new / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", source=path) from None


def read_fit(path: str | os.PathLike[str]) -> Fit:
    """Read a FIT folder.

    Raises
    ------
    InputError
        A file is missing, damaged or lacks a column.
    """
    from rcp_bayes.items import Items

    folder = Path(path)
    if not os.path.isdir(folder):
        raise InputError("no such folder", source=path, remedy="name a folder made by `fit`")
    if not (folder / INFO).exists():
        raise InputError(
            f"holds no whole fit ({INFO} is missing)", source=path, remedy="run `fit` again"
        )
    info = _read_json(folder / INFO)
    items = Items.from_json(_read_json(folder / ITEMS), source=folder / ITEMS)
    labels = _read_frame(folder / LABELS, labels_schema(items.ids))
    queries = _read_frame(folder / QUERIES, FIT_QUERIES)
    lost = _distinct_queries(labels) ^ _distinct_queries(queries)
    if lost:
        dataset, query = min(lost)
        raise InputError(
            f"{LABELS} and {QUERIES} differ in their queries ({dataset}/{query} is in one alone)",
            source=path,
            remedy="they are not of one fit: run `fit` again",
        )
    return Fit(labels, queries, items, info)


def _checked(frame: pd.DataFrame, schema: Schema, name: str) -> pa.Table:
    """A frame in the schema's form, its further columns after it, ids as plain text."""
    origin = Origin(name)
    return _with_rest(table_of(frame, origin, schema), schema, origin)


def _with_rest(raw: pa.Table, schema: Schema, origin: Origin) -> pa.Table:
    table, _ = unite([(raw, origin)], schema)
    for i, name in enumerate(table.column_names):
        column = table.column(i)
        if pa.types.is_dictionary(column.type):
            table = table.set_column(i, name, column.cast(pa.large_string()))
    for name in raw.column_names:
        if not schema.reads(name):
            table = table.append_column(name, raw.column(name))
    return table


def _read_frame(path: Path, schema: Schema) -> pd.DataFrame:
    ((raw, origin),) = read_parts(read_content(path), schema, wanted=lambda name: True)
    return frame_of(_with_rest(raw, schema, origin))


def _distinct_queries(frame: pd.DataFrame) -> set[tuple[str, str]]:
    return set(frame[_QUERY].drop_duplicates().itertuples(index=False, name=None))


def _require_estimates(fit: Fit) -> None:
    """Refuse a NaN that does not stand for missing answers."""
    import pandas as pd

    labels, queries = fit.labels, fit.queries.drop_duplicates(_QUERY, keep="last")
    numbers = {
        name: labels[name].to_numpy(np.float64, na_value=np.nan)
        for name in ("bt", "theta", "gain", "n_windows", "n_placements")
    }
    shown = numbers["n_windows"] > 0
    _require(np.isfinite(numbers["bt"]) | ~shown, "labels", "bt")
    query_of_row = pd.MultiIndex.from_frame(queries[_QUERY]).get_indexer(
        pd.MultiIndex.from_frame(labels[_QUERY])
    )
    for name in ("tau", "alpha"):
        values = queries[name].to_numpy(np.float64, na_value=np.nan)
        of_row = np.where(query_of_row < 0, np.nan, values[query_of_row])
        if name == "tau":
            tau = of_row
        _require(np.isfinite(of_row) | ~shown | (numbers["n_placements"] == 0), "queries", name)
    calibrated = shown & np.isfinite(tau)
    for name in ("theta", "gain"):
        _require(np.isfinite(numbers[name]) | ~calibrated, "labels", name)
    if not calibrated.any():
        raise InputError("no document has a gain", source="labels", remedy=_NOT_SAVED)
    objective = fit.info.get("objective")
    if objective is not None and not math.isfinite(objective):
        raise InputError(f"the objective is {objective}", source="fit", remedy=_NOT_SAVED)


def _require(fine: np.ndarray, table: str, column: str) -> None:
    bad = np.flatnonzero(~fine)
    if len(bad):
        raise InputError(
            "an estimate is NaN although the answers are there",
            source=table,
            row=int(bad[0]) + 1 if table == "labels" else None,
            column=column,
            remedy=_NOT_SAVED,
        )


def _strict_json(document: dict[str, Any], name: str) -> str:
    """JSON text without NaN tokens; numpy's numbers and arrays as plain ones.

    Raises
    ------
    InputError
        Naming the key that holds a value that is not finite.
    """
    where = _not_finite(document, "")
    if where:
        raise InputError("a value is not finite", source=name, column=where, remedy=_NOT_SAVED)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2, default=_plain)
    # A path that is not UTF-8 holds surrogates: JSON writes those, and those alone, as \\udcXX.
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} does not belong in a JSON file")


def _not_finite(value: Any, path: str) -> str | None:
    """Path of the first number in a document that is not finite."""
    if isinstance(value, dict):
        found = (_not_finite(v, f"{path}.{k}" if path else str(k)) for k, v in value.items())
        return next(filter(None, found), None)
    if isinstance(value, list | tuple):
        return next(
            filter(None, (_not_finite(v, f"{path}[{i}]") for i, v in enumerate(value))), None
        )
    if isinstance(value, float | np.floating):
        return None if np.isfinite(value) else path
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return None if np.isfinite(value).all() else path
    return None


def _read_json(path: Path) -> dict[str, Any]:
    content = read_content(path)
    try:
        document = json.loads(content.data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error})", source=path) from None
    if not isinstance(document, dict):
        raise InputError("is not a JSON object", source=path)
    return document


def _refuse_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a JSON value")
