"""The command line: exit codes, one clear line for bad input, JSON on stdout and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from rcp_bayes.cli import main


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    argv = ["simulate", "--out", str(folder), "--queries", "6", "--pool", "20", "--seed", "3"]
    assert main(argv) == 0
    assert main(["fit", str(folder), "--out", str(folder / "fit")]) == 0
    return folder


def scoring(world, *more):
    runs, qrels = str(world / "runs.parquet"), str(world / "qrels.txt")
    return ["score", str(world / "fit"), "--runs", runs, "--qrels", qrels, *more]


def one_line(capsys) -> str:
    """The single line of stderr, without a traceback and with nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    return err.strip()


def test_fit_writes_the_contract(world):
    folder = world / "fit"
    expected = {"labels.parquet", "queries.parquet", "items.json", "fit.json"}
    assert {path.name for path in folder.iterdir()} == expected
    labels = pd.read_parquet(folder / "labels.parquet")
    first = "dataset query_id doc_id pool_position n_windows n_placements bt theta gain pass_share"
    assert list(labels.columns[:10]) == first.split()
    assert list(labels.columns[10:]) == [f"passes_C{c}" for c in range(1, 6)]
    queries = pd.read_parquet(folder / "queries.parquet")
    names = "dataset query_id tau alpha n_documents n_invalid_a n_invalid_b"
    assert list(queries.columns) == names.split()
    info = json.loads((folder / "fit.json").read_text())
    wanted = (
        "method stage_a stage_a_model priors link seed interval versions counts iterations"
        " objective max_gradient tau_at_boundary warnings seconds"
    )
    assert set(wanted.split()) <= set(info)
    assert info["method"] == "map" and info["max_gradient"] <= 1e-5
    items = json.loads((folder / "items.json").read_text())
    assert {"criteria", "gamma", "beta", "priors", "constraints", "rounded"} <= set(items)


def test_score_json_is_one_document(world, capsys):
    assert main(scoring(world, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["protocol"] == "plain" and document["k"] == 10
    keys = {"dataset", "system", "metric", "score", "rank", "n_queries", "judged_at_k"}
    assert all(keys <= set(row) for row in document["leaderboard"])
    metrics = {row["metric"] for row in document["leaderboard"]}
    assert metrics == {"rcp_ndcg", "qrel_ndcg", "count_ndcg", "raw_bt_ndcg"}
    assert "mean" in {row["dataset"] for row in document["leaderboard"]}


def test_score_prints_every_system_and_metric(world, capsys):
    assert main(scoring(world)) == 0
    text = capsys.readouterr().out
    for system in pd.read_parquet(world / "runs.parquet")["system"].unique():
        assert system in text
    assert "plain" in text and "10" in text


def test_per_query_scores(world, tmp_path):
    out = tmp_path / "scores.parquet"
    assert main(scoring(world, "--out", str(out))) == 0
    table = pd.read_parquet(out)
    assert list(table.columns) == ["dataset", "query_id", "system", "metric", "k", "score"]


def test_score_without_a_fit(world, capsys):
    argv = ["score", "--runs", str(world / "runs.parquet"), "--qrels", str(world / "qrels.txt")]
    assert main([*argv, "--json"]) == 0
    board = json.loads(capsys.readouterr().out)["leaderboard"]
    assert {row["metric"] for row in board} == {"qrel_ndcg"}
    assert main(argv[:3]) == 2


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fit"],
        ["nonsense"],
        ["score", "--runs", "x", "--k", "0"],
        ["fit", "x", "--out", "y", "--z"],
    ],
)
def test_wrong_usage_is_two(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(argv))
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_missing_folder_is_three(tmp_path, capsys):
    assert main(["fit", str(tmp_path / "none"), "--out", str(tmp_path / "fit")]) == 3
    assert "none" in one_line(capsys)


def test_score_out_of_range_names_file_row_and_column(world, tmp_path, capsys):
    table = pd.read_parquet(world / "stage_a.parquet")
    table.loc[3, "score"] = 9.0
    table.to_parquet(tmp_path / "stage_a.parquet")
    pd.read_parquet(world / "stage_b.parquet").to_parquet(tmp_path / "stage_b.parquet")
    assert main(["fit", str(tmp_path), "--out", str(tmp_path / "fit")]) == 3
    line = one_line(capsys)
    assert "stage_a.parquet" in line and "score" in line and "9" in line and "row" in line
    assert not (tmp_path / "fit" / "fit.json").exists()


def test_runs_of_other_queries_are_three(world, tmp_path, capsys):
    runs = pd.read_parquet(world / "runs.parquet")
    runs.assign(query_id=runs["query_id"] + ".0").to_parquet(tmp_path / "runs.parquet")
    argv = ["score", str(world / "fit"), "--runs", str(tmp_path / "runs.parquet")]
    assert main(argv) == 3
    assert ".0" in one_line(capsys)


def test_out_is_a_file(world, tmp_path, capsys):
    (tmp_path / "fit").write_text("mine")
    assert main(["fit", str(world), "--out", str(tmp_path / "fit")]) == 3
    one_line(capsys)
    assert (tmp_path / "fit").read_text() == "mine"


def test_help_is_quick_and_complete():
    times = []
    for _ in range(3):
        started = time.perf_counter()
        argv = [sys.executable, "-m", "rcp_bayes", "--help"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - started)
    assert min(times) < 1.0
    for command in ("demo", "fit", "score", "simulate"):
        assert command in done.stdout


def test_interrupt_is_130(world, tmp_path):
    code = (
        # Whoever started the tests may ignore the signal, and children inherit that.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import rcp_bayes.calibrate as c, sys, time\n"
        "def slow(*a, **k):\n    print('started', flush=True)\n    time.sleep(60)\n"
        "c.fit = slow\nfrom rcp_bayes.cli import main\n"
        f"sys.exit(main(['fit', {str(world)!r}, '--out', {str(tmp_path / 'f')!r}]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout.readline().strip() == b"started"
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert b"Traceback" not in err


def test_closed_pipe_is_quiet(world):
    argv = " ".join([sys.executable, "-m", "rcp_bayes", *scoring(world, "--json")])
    done = subprocess.run(["bash", "-c", f"{argv} | head -c 1"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_protocols_of_the_command_line_are_those_of_the_library():
    from rcp_bayes import cli_scoring, evaluate

    assert tuple(evaluate.PROTOCOLS) == cli_scoring.PROTOCOLS
