"""Inputs, places and streams that were found to break a command: each has one right outcome now."""

import codecs
import itertools
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import platformdirs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcp_bayes.cli import main
from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.evaluate import score
from rcp_bayes.fitfolder import Fit, read_fit, write_fit
from rcp_bayes.inference.runtime import use_compilation_cache
from rcp_bayes.io import read_judgments, read_qrels, read_runs, write_table
from rcp_bayes.items import Items, load_items
from rcp_bayes.metrics import ndcg
from rcp_bayes.observations import observe
from rcp_bayes.records import CANDIDATES, Judgments
from rcp_bayes.rubric import criteria_named
from rcp_bayes.simulation import simulate
from rcp_bayes.tables import canonical

TOO_LONG = "x" * 5000  # beyond what any file system takes as a name


@pytest.fixture(scope="module")
def small():
    return simulate(n_queries=2, pool_size=6, seed=5)


@pytest.fixture
def judgments(small, tmp_path):
    folder = tmp_path / "judgments"
    for name in ("stage_a", "stage_b"):
        write_table(getattr(small, name), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def fit_folder(tmp_path_factory):
    """A FIT folder made by hand: one query, three documents, no JAX."""
    folder = tmp_path_factory.mktemp("fit")
    write_fit(hand_made({"q1": [0.9, 0.5, 0.1]}), folder)
    (folder / "runs.csv").write_text("query_id,doc_id,score,system\nq1,d0,2,é😀\nq1,d2,1,é😀\n")
    return folder


def hand_made(gains: dict[str, list[float]], **columns) -> Fit:
    rows = [(q, f"d{i}", i, g) for q, of_query in gains.items() for i, g in enumerate(of_query)]
    labels = pd.DataFrame(rows, columns=["query_id", "doc_id", "pool_position", "gain"])
    same = {"dataset": "default", "n_windows": 1, "n_placements": 1, "passes_C1": 1}
    numbers = {name: np.zeros(len(rows)) for name in ("bt", "theta")}
    labels = labels.assign(**same, **numbers, pass_share=labels["gain"]).assign(**columns)
    counts = {"n_documents": 3, "n_invalid_a": 0, "n_invalid_b": 0}
    queries = pd.DataFrame({"query_id": list(gains)}).assign(
        dataset="default", tau=1.0, alpha=0.0, **counts
    )
    items = Items(criteria_named(["C1"]), np.array([1.0]), np.array([0.0]))
    return Fit(labels, queries, items, {"method": "map"})


def refused(capsys, *argv, code=3) -> str:
    """The one line of stderr with which a command refuses."""
    assert main([str(a) for a in argv]) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    (line,) = err.strip().split("\n")
    return line


def replace_column(path: Path, name: str, values: pa.Array) -> None:
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, values), path)


def not_utf8(n: int) -> pa.Array:
    """Text of which the second row is no UTF-8: Parquet stores it without a check."""
    raw = [b"q1" if row != 1 else b"q\xff" for row in range(n)]
    return pa.array(raw, pa.binary()).view(pa.string())


# ------------------------------------------------------------------------------------- judgments


@pytest.mark.parametrize("column", ["query_id", "phase", "score"])
def test_parquet_text_that_is_not_utf8_names_row_and_column(judgments, column):
    path = judgments / "stage_a.parquet"
    replace_column(path, column, not_utf8(pq.read_metadata(path).num_rows))
    with pytest.raises(InputError, match="not UTF-8") as error:
        read_judgments(judgments)
    assert (error.value.row, error.value.column) == (2, column)
    assert error.value.source == str(path)


def test_unused_entries_of_a_dictionary_may_be_anything():
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), not_utf8(2))
    table = pa.table({"query_id": ["q", "q"], "doc_id": coded})
    with_ids = canonical(table, CANDIDATES, Origin("t"))
    assert with_ids["doc_id"].to_pylist() == ["q1", "q1"]


@pytest.mark.parametrize(
    ("column", "value", "kind", "shown"),
    [
        ("position", 2**63, pa.uint64(), "9.223372036854776e+18"),
        ("position", 2**40, pa.int64(), "1099511627776"),  # would wrap to 0 in 32 bits
        ("position", 1e300, pa.float64(), "1e+300"),
        ("score", 2**63, pa.uint64(), "9.223372036854776e+18"),
        ("score", 5.0000001, pa.float64(), "5.0000001"),  # not "5 is outside [-5, 5]"
    ],
)
def test_numbers_out_of_range_are_shown_as_they_are(judgments, column, value, kind, shown):
    path = judgments / "stage_a.parquet"
    replace_column(path, column, pa.array([value] * pq.read_metadata(path).num_rows, kind))
    with pytest.raises(InputError) as error:
        read_judgments(judgments)
    assert f"row 1, column {column}: value {shown} is outside [" in str(error.value)


def test_an_empty_word_is_missing_in_parquet_as_in_csv(small):
    frames = [
        frame.assign(invalid="", judge="", phase="") for frame in (small.stage_a, small.stage_b)
    ]
    observed = observe(Judgments.from_frames(*frames))
    plain = observe(Judgments.from_frames(small.stage_a, small.stage_b))
    assert observed.windows.n_windows == plain.windows.n_windows
    assert observed.counts["stage_a"]["invalid_windows"] == 0
    assert observed.counts["stage_a"]["judges"] == ["(unnamed)"]


@pytest.mark.parametrize("name", ["C 1", "C,1", " C1", "C\n1", "C\u00a01"])
def test_a_column_that_cannot_be_a_criterion_is_refused_before_any_fit(small, name):
    renamed = small.stage_b.rename(columns={"C1": name})
    with pytest.raises(InputError, match="holds a space or a comma"):
        Judgments.from_frames(small.stage_a, renamed)
    others = Judgments.from_frames(small.stage_a, renamed, criteria=["C2", "C3"])
    assert others.criteria == ("C2", "C3")


@pytest.mark.parametrize("values", ["because", ["a"], {"C1": 1}, 0.5])
def test_a_further_column_of_stage_b_tells_of_the_option(small, values):
    extra = small.stage_b.assign(reason=[values] * len(small.stage_b))
    with pytest.raises(InputError, match=r"column reason: .*--criteria") as error:
        Judgments.from_frames(small.stage_a, extra)
    assert error.value.row == 1
    assert Judgments.from_frames(small.stage_a, extra, criteria=["C1"]).criteria == ("C1",)


def test_a_criterion_without_any_answer_is_named(small):
    blank = Judgments.from_frames(small.stage_a, small.stage_b.assign(C3=np.nan))
    with pytest.raises(InputError, match=r"column C3: every answer of stage_b has a null"):
        observe(blank)
    assert observe(blank, criteria=["C1", "C2"]).placements.criteria == ("C1", "C2")


@pytest.mark.parametrize("empty", [codecs.BOM_UTF8, b"", b"\n \n", b"query_id,window_id,doc_id"])
def test_a_file_without_rows_beside_a_good_one(judgments, empty):
    good = read_judgments(judgments)
    (judgments / "stage_a-0.csv").write_bytes(empty)
    assert read_judgments(judgments).stage_a.equals(good.stage_a)
    (judgments / "stage_a.parquet").unlink()
    with pytest.raises(InputError, match="no rows"):
        read_judgments(judgments)


def test_a_pipe_in_the_folder_is_not_waited_for(judgments):
    os.mkfifo(judgments / "stage_b-2.parquet")
    with pytest.raises(InputError, match=r"stage_b-2.parquet: is a pipe"):
        read_judgments(judgments)


def test_suffixes_in_capitals(judgments):
    (judgments / "stage_a.parquet").rename(judgments / "stage_a.PARQUET")
    assert read_judgments(judgments).stage_a is not None


# ------------------------------------------------------------------------------ places and items


def test_names_that_no_file_can_have(capsys, judgments, fit_folder, tmp_path):
    runs = fit_folder / "runs.csv"
    assert "no such folder" in refused(capsys, "fit", TOO_LONG, "--out", tmp_path / "f")
    assert "cannot be written" in refused(capsys, "fit", judgments, "--out", TOO_LONG)
    assert "neither a file" in refused(
        capsys, "fit", judgments, "--out", tmp_path / "f", "--items", TOO_LONG
    )
    assert "no such folder" in refused(capsys, "score", TOO_LONG, "--runs", runs)
    assert "cannot be read" in refused(capsys, "score", fit_folder, "--runs", TOO_LONG)
    assert "cannot be written" in refused(capsys, "simulate", "--out", TOO_LONG)
    with pytest.raises(InputError, match="cannot be written"):
        write_fit(hand_made({"q1": [0.5]}), "a\0b")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"criteria": [{"id": "C1"}], "gamma": [1' + "0" * 400 + '], "beta": [0]}',
        '{"criteria": [{"id": "C1"}], "gamma": [1e999], "beta": [0]}',
    ],
)
def test_items_that_are_no_numbers(tmp_path, text):
    (tmp_path / "items.json").write_text(text)
    with pytest.raises(InputError, match=r"items\.json: "):
        load_items(tmp_path)


def test_simulate_refuses_settings_as_wrong_usage(capsys, tmp_path):
    for option in (["--noise", "nan"], ["--noise", "-1"], ["--seed", "-1"]):
        refused(capsys, "simulate", "--out", tmp_path / "s", *option, code=2)
    assert not (tmp_path / "s").exists()
    with pytest.raises(UsageError, match="seed"):
        simulate(n_queries=1, pool_size=2, seed=1.5)


def test_a_user_without_a_home_has_no_compilation_cache(monkeypatch):
    def homeless(*args, **more):
        raise RuntimeError("could not determine the home directory")

    jax = pytest.importorskip("jax")
    monkeypatch.setattr(platformdirs, "user_cache_dir", homeless)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert use_compilation_cache() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


# --------------------------------------------------------------------------------- FIT and scores


def test_a_fit_of_two_halves_is_refused(tmp_path):
    write_fit(hand_made({"q1": [0.5, 0.1], "q2": [0.2]}), tmp_path)
    queries = pd.read_parquet(tmp_path / "queries.parquet")
    queries.iloc[:1].to_parquet(tmp_path / "queries.parquet")
    with pytest.raises(InputError, match=r"differ in their queries \(default/q2"):
        read_fit(tmp_path)


@pytest.mark.parametrize(("column", "value"), [("gain", -0.1), ("gain", 7.0), ("pass_share", 1.5)])
def test_labels_beyond_their_scale_are_refused(fit_folder, tmp_path, column, value):
    for name in ("fit.json", "items.json", "queries.parquet"):
        (tmp_path / name).write_bytes((fit_folder / name).read_bytes())
    labels = pd.read_parquet(fit_folder / "labels.parquet")
    labels.loc[1, column] = value
    labels.to_parquet(tmp_path / "labels.parquet")
    with pytest.raises(InputError, match=rf"row 2, column {column}: .* outside \[0, 1\]"):
        read_fit(tmp_path)


def test_a_cutoff_beyond_every_list(capsys, fit_folder):
    argv = ["score", str(fit_folder), "--runs", str(fit_folder / "runs.csv"), "--json", "--k"]
    boards = []
    for k in ("3", str(10**12)):
        assert main([*argv, k]) == 0
        boards.append(json.loads(capsys.readouterr().out))
    assert boards[1]["k"] == 10**12
    assert [r["score"] for r in boards[0]["leaderboard"]] == [
        r["score"] for r in boards[1]["leaderboard"]
    ]
    assert ndcg([1.0, 0.0], [1.0, 2.0], k=10**15) == pytest.approx(1 / math.log2(3), rel=1e-15)


@pytest.mark.parametrize(("kind", "grade"), [("linear", 1e300), ("exponential", 2000.0)])
def test_grades_whose_gains_overflow_are_refused(kind, grade):
    runs = pd.DataFrame({"query_id": "q", "doc_id": ["a", "b"], "score": [2.0, 1.0]})
    qrels = pd.DataFrame({"query_id": "q", "doc_id": ["a", "b"], "grade": [1.0, grade]})
    with pytest.raises(InputError, match=r"qrels: row 2, column grade: grade .* gain above"):
        score(None, runs, qrels, qrel_gain=kind)


@pytest.mark.parametrize("option", [{"k": 2.5}, {"k": "10"}, {"k": 0}, {"metrics": []}])
def test_scoring_options_that_mean_nothing(option):
    runs = pd.DataFrame({"query_id": "q", "doc_id": ["a", "b"], "score": [2.0, 1.0]})
    with pytest.raises(UsageError):
        score(None, runs, runs.rename(columns={"score": "grade"}), **option)


def test_no_criterion_at_all(small):
    both = Judgments.from_frames(small.stage_a, small.stage_b)
    with pytest.raises(InputError, match="no criterion is named"):
        observe(both, criteria=[])


def test_formats_that_are_not_written_are_not_offered(tmp_path):
    with pytest.raises(InputError, match=r"unknown format; write \.parquet, \.csv or \.jsonl$"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "a.tsv")


def test_a_blank_trec_file_has_no_rows(tmp_path):
    for content in (codecs.BOM_UTF8, b"\r\n \r\n"):
        (tmp_path / "a.run").write_bytes(content)
        for read in (read_runs, read_qrels):
            with pytest.raises(InputError, match="no rows"):
                read(tmp_path / "a.run")


# ------------------------------------------------------------------- nDCG against plain Python


def plain_ndcg(groups, gain, k):
    """Eq. 1, written for reading: groups of tied documents, best first, share their mean gain."""
    place, dcg = 0, 0.0
    for group in groups:
        mean = sum(gain.get(document, 0.0) for document in group) / len(group)
        for _ in group:
            place += 1
            if place <= k:
                dcg += mean / math.log2(place + 1)
    best = sorted(gain.values(), reverse=True)[:k]
    ideal = sum(value / math.log2(i + 2) for i, value in enumerate(best))
    return dcg / ideal if ideal > 0 else math.nan


def tied_groups(rows, ties, pool):
    for value in sorted({s for _, s in rows}, reverse=True):
        group = [d for d, s in rows if s == value]
        if ties == "mean":
            yield group
        else:
            order = sorted(group, reverse=True) if ties == "id" else sorted(group, key=pool.index)
            yield from ([document] for document in order)


@pytest.mark.parametrize("seed", range(6))
def test_all_protocols_against_a_loop_over_documents(seed):
    draw = np.random.default_rng(seed)
    pool = [f"d{i}" for i in range(int(draw.integers(2, 9)))]
    gains = {q: np.where(draw.random(len(pool)) < 0.2, np.nan, draw.random(len(pool))).tolist()
             for q in ("q1", "q2")}  # fmt: skip
    fit = hand_made(gains)
    everything = list(itertools.product(gains, [*pool, "x1", "x2"]))
    runs = pd.DataFrame(
        [(q, d, float(draw.integers(0, 3))) for q, d in everything if draw.random() < 0.8],
        columns=["query_id", "doc_id", "score"],
    )
    qrels = pd.DataFrame(
        [(q, d, float(draw.integers(-1, 4))) for q, d in everything if draw.random() < 0.6],
        columns=["query_id", "doc_id", "grade"],
    )
    gone = [pair for pair in everything if draw.random() < 0.15] or [("q1", "x1")]
    excluded = pd.DataFrame(gone, columns=["query_id", "doc_id"])
    k = int(draw.integers(1, 7))
    protocols = {"plain": "mean", "trec": "id", "nanobeir": "id", "bright": "id",
                 "vidore": "mean", "trecdl": "pool"}  # fmt: skip
    compared = 0
    for (protocol, ties), unjudged in itertools.product(protocols.items(), ("zero", "condense")):
        scores = score(fit, runs, qrels, k=k, protocol=protocol, unjudged=unjudged,
                       excluded=excluded).per_query.set_index(["query_id", "metric"])  # fmt: skip
        for query, of_query in gains.items():
            graded = qrels[qrels["query_id"] == query]
            tables = {
                "rcp_ndcg": {d: g for d, g in zip(pool, of_query, strict=True) if g == g},
                "qrel_ndcg": {
                    d: max(g, 0.0) for d, g in zip(graded["doc_id"], graded["grade"], strict=True)
                },
            }
            for metric, table in tables.items():
                gain = {d: g for d, g in table.items() if (query, d) not in gone}
                of_run = runs[runs["query_id"] == query]
                rows = [
                    (d, s)
                    for d, s in zip(of_run["doc_id"], of_run["score"], strict=True)
                    if (query, d) not in gone
                    and (protocol in ("plain", "trec", "bright") or d in pool)
                    and (unjudged == "zero" or d in gain)
                ]
                if (query, metric) not in scores.index:
                    continue
                compared += 1
                # The sums run in another order: a few ulps.
                assert scores.loc[(query, metric), "score"] == pytest.approx(
                    plain_ndcg(tied_groups(rows, ties, pool), gain, k), abs=1e-12, nan_ok=True
                )
    assert compared >= 24


# ------------------------------------------------------------- processes: streams, limits, threads


def command(*argv, **more) -> subprocess.CompletedProcess:
    python = [sys.executable, "-W", "error", "-m", "rcp_bayes"]
    settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 60} | more
    if "stdout" in settings:
        settings |= {"capture_output": False, "stderr": subprocess.PIPE}
    return subprocess.run([*python, *map(os.fsencode, argv)], **settings)


def test_a_full_disk_behind_stdout_is_one_line(fit_folder):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    for more in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            done = command("score", fit_folder, "--runs", fit_folder / "runs.csv", *more,
                           stdout=full)  # fmt: skip
        assert done.returncode == 3
        *_, line = done.stderr.decode().strip().split("\n")
        assert line == "rcp-bayes: standard output: cannot be written (No space left on device)"
        assert b"Traceback" not in done.stderr


def test_a_terminal_without_unicode_still_gets_the_result(fit_folder):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    argv = ["score", fit_folder, "--runs", fit_folder / "runs.csv"]
    text = command(*argv, env=environment)
    assert text.returncode == 0 and rb"\xe9\U0001f600" in text.stdout
    document = json.loads(command(*argv, "--json", env=environment).stdout.decode("ascii"))
    assert {row["system"] for row in document["leaderboard"]} == {"é😀"}


def test_paths_that_are_not_utf8(fit_folder, tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"fit\xff")
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    fit = hand_made({"q1": [0.9, 0.5, 0.1]})
    fit.info["input"] = {"source": os.fsdecode(folder)}
    write_fit(fit, os.fsdecode(folder))
    assert read_fit(os.fsdecode(folder)).info == fit.info
    runs = os.path.join(folder, b"bm\xff25.csv")
    with open(runs, "w") as file:
        file.write("query_id,doc_id,score\nq1,d0,1\n")
    done = command("score", folder, "--runs", runs, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["leaderboard"][0]["system"] == "bm\ufffd25"


def test_a_disk_that_fills_leaves_the_old_fit_whole(tmp_path):
    write_fit(hand_made({"q1": [0.9, 0.5, 0.1]}), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    random = np.random.default_rng(0).random(5000).tolist()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # Python ignores the signal: EFBIG
    try:
        with pytest.raises(InputError, match="cannot be written"):
            write_fit(hand_made({"q1": random}), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


THREADS = """
import sys, threading
import jax, jax.numpy as jnp
assert jnp.ones(1).dtype == jnp.float32
import rcp_bayes
one = rcp_bayes.fit(sys.argv[1], criteria=["C1", "C2"])
assert one.info["converged"] and one.labels["gain"].dtype == float
fits = [None] * 4
def work(i):
    fits[i] = rcp_bayes.fit(sys.argv[1], criteria=["C1", "C2"])
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[thread.start() for thread in threads]
assert (jnp.ones(3) * 1.5).dtype == jnp.float32
[thread.join() for thread in threads]
assert all((fit.labels["gain"] == one.labels["gain"]).all() for fit in fits)
assert not jax.config.jax_enable_x64 and jnp.ones(1).dtype == jnp.float32
print("fine")
"""


def test_fits_in_threads_beside_a_user_of_float32(judgments):
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", THREADS, str(judgments)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr
