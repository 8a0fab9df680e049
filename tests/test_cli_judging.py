"""The judging commands end to end: pool, judge, resume, shards, reparse, a served judge."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from rcp_bayes.cli import main
from rcp_bayes.demo import TEXT_POOL


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Three queries of the shipped pool, twelve candidates each."""
    folder = tmp_path_factory.mktemp("pool")
    for name in ("queries.jsonl", "corpus.jsonl"):
        shutil.copy(TEXT_POOL / name, folder)
    candidates = pd.read_json(TEXT_POOL / "candidates.jsonl", lines=True)
    few = candidates[candidates["query_id"].isin(["leaves", "tides", "bread"])]
    few.groupby("query_id").head(12).to_csv(folder / "candidates.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def judged(pool, tmp_path_factory):
    out = tmp_path_factory.mktemp("judged") / "judgments"
    assert main(["judge", str(pool), "--judge", "lexical", "--out", str(out)]) == 0
    return out


def tables(folder):
    return [pd.read_parquet(folder / f"stage_{stage}.parquet") for stage in "ab"]


def same(left, right):
    for a, b in zip(tables(left), tables(right), strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_judged_pool_fits(judged, tmp_path, capsys):
    assert main(["fit", str(judged), "--out", str(tmp_path / "fit")]) == 0
    labels = pd.read_parquet(tmp_path / "fit" / "labels.parquet")
    assert len(labels) == 36 and labels["gain"].notna().all()
    assert "C5" in capsys.readouterr().out


def test_second_run_asks_nothing(pool, judged, capsys):
    before = tables(judged)
    capsys.readouterr()
    assert main(["judge", str(pool), "--judge", "lexical", "--out", str(judged)]) == 0
    assert "0 calls" in capsys.readouterr().out
    for a, b in zip(before, tables(judged), strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_shards_merge_to_the_whole(pool, judged, tmp_path):
    shards = [tmp_path / f"shard{i}" for i in (1, 2)]
    for i, shard in enumerate(shards, 1):
        argv = ["judge", str(pool), "--judge", "lexical", "--out", str(shard), "--shard", f"{i}/2"]
        assert main(argv) == 0
    assert main(["merge", *map(str, shards), "--out", str(tmp_path / "all")]) == 0
    same(tmp_path / "all", judged)


def test_reparse_changes_nothing_with_the_same_decoder(judged, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(judged, copy)
    (copy / "stage_a.parquet").unlink()
    capsys.readouterr()
    assert main(["reparse", str(copy)]) == 0
    assert " 0 read otherwise" in capsys.readouterr().out
    same(copy, judged)


def test_estimate_asks_nothing(pool, tmp_path, capsys):
    out = tmp_path / "none"
    argv = ["judge", str(pool), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    argv += ["--out", str(out), "--estimate", "--price-in", "1", "--price-out", "2"]
    assert main(argv) == 0
    assert "cost" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["--judge", "lexical", "--model", "m"],
        [],
        ["--judge", "lexical", "--shard", "3/2"],
        ["--judge", "lexical", "--concurrency", "0"],
        ["--model", "m", "--temperature", "nan"],
        ["--model", "m", "--temperature", "-1"],
        ["--model", "m", "--top-p", "0"],
        ["--model", "m", "--top-p", "nan"],
        ["--model", "m", "--max-tokens", "0"],
        ["--model", "m", "--timeout", "0"],
        ["--model", "m", "--patience", "nan"],
        ["--model", "m", "--extra-body", '{"model": "other"}'],
        ["--model", "m", "--extra-body", '{"messages": []}'],
        ["--model", "m", "--extra-body", '{"stream": true}'],
        ["--model", "m", "--extra-body", '{"top_k": NaN}'],
    ],
)
def test_wrong_usage(pool, tmp_path, argv, capsys):
    assert main(["judge", str(pool), "--out", str(tmp_path / "x"), *argv]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_impossible_ports_are_wrong_usage(port, capsys):
    assert main(["serve-judge", "--port", port]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert port in line


def test_a_file_as_out_is_one_line(pool, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["judge", str(pool), "--judge", "lexical", "--out", str(tmp_path / "file")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a file, not a folder" in line


def test_what_a_pool_holds_unexpectedly_is_told(tmp_path, capsys):
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "sky"}\n{"_id": "q2", "text": "sea"}\n{"_id": "q3", "text": " "}\n'
    )
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "b", "text": ""}\n')
    (tmp_path / "candidates.csv").write_text("query_id,doc_id\nq1,a\nq1,b\nq1,a\nq3,a\n")
    argv = ["judge", str(tmp_path), "--judge", "lexical", "--out", str(tmp_path / "j")]
    assert main([*argv, "--estimate"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: 1 candidate named twice for a query, judged once",
        "note: 1 query without candidates, not judged: 'q2'",
        "note: 1 query without text: 'q3'",
    ]


def test_an_interrupt_says_how_to_go_on(pool, tmp_path, monkeypatch, capsys):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rcp_bayes.judge.run.judge_pool", interrupted)
    argv = ["judge", str(pool), "--judge", "lexical", "--out", str(tmp_path / "j")]
    assert main(argv) == 130
    kept, last = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "j") in kept and "same command" in kept
    assert last == "rcp-bayes: interrupted"


def test_dead_server_is_four(pool, tmp_path, capsys):
    argv = ["judge", str(pool), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    argv += ["--out", str(tmp_path / "x"), "--patience", "0.5"]
    assert main(argv) == 4
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1 and "127.0.0.1:9" in err


def test_served_judge_gives_the_same_judgments(pool, judged, tmp_path):
    argv = [sys.executable, "-m", "rcp_bayes", "serve-judge", "--port", "0"]
    faults = ["--fault", "rate_limit=0.05", "--fault", "error=0.05", "--fault", "drop=0.05"]
    with subprocess.Popen([*argv, *faults], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            out = tmp_path / "served"
            argv = ["judge", str(pool), "--base-url", url, "--model", "lexical"]
            assert main([*argv, "--out", str(out), "--api-key", "secret-key-1"]) == 0
        finally:
            server.terminate()
    for ours, served in zip(tables(judged), tables(out), strict=True):
        # Window ids carry the judge's settings, and a served judge has others.
        pd.testing.assert_frame_equal(
            ours.drop(columns="window_id"), served.drop(columns="window_id")
        )
    for path in out.iterdir():
        assert b"secret-key-1" not in path.read_bytes()


def test_pool_command(tmp_path, capsys):
    runs = tmp_path / "runs.txt"
    runs.write_text("q1 Q0 a 1 2.0 one\nq1 Q0 b 2 1.0 one\nq1 Q0 b 1 9.0 two\n")
    (tmp_path / "qrels.txt").write_text("q1 0 x 1\nq1 0 a 0\n")
    argv = ["pool", "--runs", str(runs), "--out", str(tmp_path / "pool"), "--k", "2"]
    assert main([*argv, "--qrels", str(tmp_path / "qrels.txt"), "--keep-positives"]) == 0
    found = pd.read_parquet(tmp_path / "pool" / "candidates.parquet")
    assert found["doc_id"].tolist() == ["b", "x"]
    assert "replace" in capsys.readouterr().out


def test_own_rubric(pool, tmp_path):
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(
        "- id: R1\n  name: Topic\n  question: Is it on topic?\n"
        "- id: R2\n  name: Answer\n  question: Does it answer?\n"
    )
    out = tmp_path / "judgments"
    argv = ["judge", str(pool), "--judge", "lexical", "--rubric", str(rubric), "--out", str(out)]
    assert main(argv) == 0
    assert {"R1", "R2"} <= set(pd.read_parquet(out / "stage_b.parquet").columns)
    # Another rubric in the same folder makes answers of another kind: they never mix silently.
    assert main(["judge", str(pool), "--judge", "lexical", "--out", str(out)]) in (0, 3)
    columns = set(pd.read_parquet(out / "stage_b.parquet").columns)
    assert not ({"R1", "R2"} <= columns and {"C1"} <= columns)


def test_server_says_models_and_usage():
    import urllib.request

    argv = [sys.executable, "-m", "rcp_bayes", "serve-judge", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}/models") as reply:
                models = json.load(reply)
        finally:
            server.terminate()
    assert [model["id"] for model in models["data"]] == ["lexical"]
