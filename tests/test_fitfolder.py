"""FIT folders: round trips, strict JSON, whole or not at all, no NaN where there are answers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcp_bayes import fitfolder
from rcp_bayes.errors import InputError
from rcp_bayes.fitfolder import Fit, prepare_folder, read_fit, write_fit
from rcp_bayes.items import Items
from rcp_bayes.rubric import Criterion

NAN = np.nan


def make_fit(documents=("0071", "71", "x y", "é#"), **info) -> Fit:
    """Two queries; the last document has no window, the second query no Stage B."""
    n = len(documents)
    labels = pd.DataFrame(
        {
            "dataset": "default",
            "query_id": ["q1"] * n + ["q2"],
            "doc_id": [*documents, "d"],
            "pool_position": np.arange(n + 1, dtype=np.int32),
            "n_windows": [1] * (n - 1) + [0, 3],
            "n_placements": [2] * n + [0],
            "bt": [*np.linspace(-1, 1, n - 1), NAN, 0.0],
            "theta": [*np.linspace(-2, 2, n - 1), NAN, NAN],
            "gain": [*np.linspace(0.1, 0.9, n - 1), NAN, NAN],
            "pass_share": [0.5] * n + [NAN],
            "passes_C1": [1] * n + [0],
            "passes_C2": [1] * n + [0],
        }
    )
    queries = pd.DataFrame(
        {
            "dataset": "default",
            "query_id": ["q1", "q2"],
            "tau": [1.5, NAN],
            "alpha": [-0.25, NAN],
            "n_documents": [n, 1],
            "n_invalid_a": [0, 2],
            "n_invalid_b": [1, 0],
        }
    )
    items = Items((Criterion("C1", "a", "?"), Criterion("C2", "b", "?")), [1.2, 0.8], [-1.0, 1.0])
    base = {"method": "map", "objective": np.float64(0.25), "iterations": np.int64(7)}
    return Fit(labels, queries, items, base | {"warnings": ("one",)} | info)


def refusal(call, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def assert_same(a: Fit, b: Fit) -> None:
    pd.testing.assert_frame_equal(a.labels, b.labels, check_dtype=False)
    pd.testing.assert_frame_equal(a.queries, b.queries, check_dtype=False)
    assert a.items.to_json() == b.items.to_json()


def test_round_trip(tmp_path):
    fit = make_fit()
    write_fit(fit, tmp_path / "new" / "fit")
    names = {p.name for p in (tmp_path / "new" / "fit").iterdir()}
    assert names == {"labels.parquet", "queries.parquet", "items.json", "fit.json"}
    back = read_fit(tmp_path / "new" / "fit")
    assert_same(fit, back)
    assert back.info == {"method": "map", "objective": 0.25, "iterations": 7, "warnings": ["one"]}
    assert back.labels["n_windows"].dtype == np.int64
    assert [str(back.labels[c].dtype) for c in ("dataset", "query_id", "doc_id")] == ["str"] * 3
    raw = pd.read_parquet(tmp_path / "new" / "fit" / "labels.parquet")
    assert raw.columns.tolist() == fit.labels.columns.tolist()
    assert raw["theta"].isna().tolist() == fit.labels["theta"].isna().tolist()


def test_posterior_columns_and_columns_of_our_own_come_back(tmp_path):
    fit = make_fit()
    n = len(fit.labels)
    labels = fit.labels.assign(ability=0.5, gain_sd=0.1, gain_lo=0.0, gain_hi=1.0, note=["x"] * n)
    queries = fit.queries.assign(tau_sd=[0.1, NAN], alpha_lo=[-1.0, NAN])
    write_fit(replace(fit, labels=labels, queries=queries), tmp_path)
    back = read_fit(tmp_path)
    assert set(back.labels.columns) == set(labels.columns)
    assert back.labels["note"].tolist() == ["x"] * n
    assert back.queries["tau_sd"].tolist()[0] == 0.1


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2,
             max_size=5, unique=True),
)  # fmt: skip
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_an_id(tmp_path, documents):
    fit = make_fit(documents)
    write_fit(fit, tmp_path)
    assert read_fit(tmp_path).labels["doc_id"].tolist() == [*documents, "d"]


@pytest.mark.parametrize(
    ("table", "column", "row", "value"),
    [
        ("labels", "theta", 0, NAN),
        ("labels", "gain", 1, NAN),
        ("labels", "bt", 2, NAN),
        ("labels", "bt", 4, NAN),
        ("labels", "gain", 1, np.inf),
        ("labels", "theta", 1, -np.inf),
        ("queries", "tau", 0, NAN),
        ("queries", "alpha", 0, NAN),
        ("queries", "alpha", 0, np.inf),
    ],
)
def test_an_estimate_that_is_not_finite_is_never_saved(tmp_path, table, column, row, value):
    fit = make_fit()
    frame = getattr(fit, table).copy()
    frame.loc[row, column] = value
    text = refusal(write_fit, replace(fit, **{table: frame}), tmp_path)
    assert f"column {column}" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [NAN, np.inf])
def test_a_loss_that_is_not_finite_is_never_saved(tmp_path, bad):
    assert "objective" in refusal(write_fit, make_fit(objective=bad), tmp_path)
    assert "column stage_a_fit.max_gradient" in refusal(
        write_fit, make_fit(stage_a_fit={"max_gradient": np.float32(bad)}), tmp_path
    )
    assert "column trace[1]" in refusal(write_fit, make_fit(trace=[1.0, bad]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fit_without_any_gain_is_never_saved(tmp_path):
    fit = make_fit()
    labels = fit.labels.assign(n_windows=0, bt=NAN, theta=NAN, gain=NAN)
    assert "no document has a gain" in refusal(write_fit, replace(fit, labels=labels), tmp_path)


def test_json_is_strict(tmp_path):
    write_fit(make_fit(seed=None, split=np.array([1.5, 2.0])), tmp_path)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    document = json.loads((tmp_path / "fit.json").read_text(), parse_constant=refuse)
    assert document["seed"] is None and document["split"] == [1.5, 2.0]
    (tmp_path / "fit.json").write_text('{"objective": NaN}')
    assert "NaN is not a JSON value" in refusal(read_fit, tmp_path)


@pytest.mark.parametrize(
    ("step", "nth"), [("table", 0), ("table", 1), *(("replace", n) for n in range(4))]
)
@pytest.mark.parametrize("older", [False, True])
def test_a_write_cut_short_leaves_no_fit_that_looks_whole(tmp_path, monkeypatch, step, nth, older):
    """The write is stopped at every step: the older fit stays whole or the folder holds none."""
    if older:
        write_fit(make_fit(method="older"), tmp_path)
    calls = 0
    real = fitfolder.os.replace if step == "replace" else fitfolder.write_table

    def stop(*arguments):
        nonlocal calls
        into_place = step == "table" or arguments[1].parent == tmp_path
        if into_place and calls == nth:
            raise KeyboardInterrupt
        calls += into_place
        return real(*arguments)

    if step == "table":
        monkeypatch.setattr(fitfolder, "write_table", stop)
    else:
        monkeypatch.setattr(fitfolder.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_fit(make_fit(method="newer"), tmp_path)
    monkeypatch.undo()
    if older and step == "table":
        assert read_fit(tmp_path).info["method"] == "older"
    else:
        assert "holds no whole fit" in refusal(read_fit, tmp_path)
    write_fit(make_fit(method="newer"), tmp_path)
    assert read_fit(tmp_path).info["method"] == "newer"
    assert not list(tmp_path.glob(".fit-*"))


def test_an_older_posterior_goes_with_its_fit(tmp_path):
    (tmp_path / "posterior.nc").write_bytes(b"of an older fit")
    (tmp_path / "notes.txt").write_text("mine")
    write_fit(make_fit(), tmp_path)
    assert not (tmp_path / "posterior.nc").exists() and (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("name", ["labels.parquet", "queries.parquet", "items.json", "fit.json"])
def test_missing_and_damaged_files_are_named(tmp_path, name):
    write_fit(make_fit(), tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:30])
    assert name in refusal(read_fit, tmp_path)
    (tmp_path / name).unlink()
    assert name in refusal(read_fit, tmp_path)


def test_places_that_are_no_fit_folder(tmp_path):
    assert "no such folder" in refusal(read_fit, tmp_path / "nowhere")
    assert "holds no whole fit" in refusal(read_fit, tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    assert "is a file" in refusal(prepare_folder, file)
    assert "cannot be written" in refusal(prepare_folder, file / "below")
    assert "is a file" in refusal(write_fit, make_fit(), file)
    assert prepare_folder(tmp_path / "a" / "b").is_dir()


def test_a_label_twice_or_without_its_columns_is_refused(tmp_path):
    fit = make_fit()
    twice = pd.concat([fit.labels, fit.labels.iloc[[0]]], ignore_index=True)
    assert "stands twice" in refusal(write_fit, replace(fit, labels=twice), tmp_path)
    short = fit.labels.drop(columns="passes_C2")
    assert "'passes_C2' is missing" in refusal(write_fit, replace(fit, labels=short), tmp_path)
