"""Leaderboards as text: every system whole, ranks and arrows right, undefined shown as such."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from rcp_bayes.evaluate import METRICS
from rcp_bayes.items import load_items
from rcp_bayes.render import fit_summary, leaderboard_text
from rcp_bayes.scores import Scores

LONG = "a-system-whose-name-is-far-too-long-for-any-narrow-terminal-" + "x" * 90


def board_of(values, dataset="default", n_queries=7):
    """Leaderboard rows from {metric: {system: score}}, ranks counted by hand."""
    rows = []
    for metric, scores in values.items():
        for system, score in sorted(scores.items(), key=lambda entry: -entry[1]):
            better = sum(other > score for other in scores.values())
            rank = None if np.isnan(score) else better + 1
            rows.append((dataset, system, metric, score, rank, n_queries, 0.875))
    names = ["dataset", "system", "metric", "score", "rank", "n_queries", "judged_at_k"]
    return pd.DataFrame(rows, columns=names).astype({"rank": "Int64"})


def scores_of(board, notes=(), **settings):
    settings = {
        "protocol": "plain",
        "k": 10,
        "unjudged": "zero",
        "qrel_gain": "linear",
        "gain_shape": "rcp",
        "drop_identical_ids": False,
    } | settings
    return Scores(pd.DataFrame(), board, tuple(notes), settings)


def rows_of(text, system):
    return [
        line for line in text.splitlines() if re.match(rf"\s*[\d-]+  {re.escape(system)}\s", line)
    ]


FOUR = {
    "rcp_ndcg": {"a": 0.9, LONG: 0.8, "漢字": 0.7},
    "qrel_ndcg": {"a": 0.5, LONG: 0.6, "漢字": 0.7},
    "count_ndcg": {"a": 0.4, LONG: 0.3, "漢字": 0.2},
    "raw_bt_ndcg": {"a": 0.1, LONG: 0.2, "漢字": 0.3},
}


def test_four_leaderboards_in_one_table():
    board = board_of(FOUR)
    text = leaderboard_text(scores_of(pd.concat([board, board.assign(dataset="mean")])))
    lines = text.splitlines()
    assert lines[0].startswith("nDCG@10, protocol plain: tied documents take their mean gain")
    assert "3 systems, 7 queries" in lines
    (header,) = [line for line in lines if line.split()[:1] == ["#"]]
    assert [word for word in header.split() if word in METRICS] == list(METRICS)
    (first,) = rows_of(text, "a")
    # rank, system, RCP, the move from third to first, then score and rank of the other metrics
    expected = "1 a 0.9000 ↑2 0.5000 3 0.4000 1 0.1000 3 0.88 0.88"
    assert first.split() == expected.split()
    (second,) = rows_of(text, LONG)
    assert second.split() == f"2 {LONG} 0.8000 0.6000 2 0.3000 2 0.2000 2 0.88 0.88".split()
    (third,) = rows_of(text, "漢字")
    assert third.split()[:4] == ["3", "漢字", "0.7000", "↓2"]
    # Wide characters take two cells: the lines still end together.
    assert len({cell_len(line) for line in (header, first, second, third)}) == 1
    assert "↑↓: places gained or lost from qrel_ndcg to rcp_ndcg" in text
    assert "mean" not in text.replace("mean gain", "")  # one dataset: no table of means
    assert "\x1b" not in text


def test_qrels_alone():
    board = board_of({"qrel_ndcg": FOUR["qrel_ndcg"]})
    text = leaderboard_text(scores_of(board, k=5, protocol="trec", qrel_gain="exponential"))
    assert "nDCG@5, protocol trec: ties by document id, descending" in text
    assert "2^grade - 1" in text and "graded@5" in text
    assert "↑" not in text and "labelled" not in text and "rcp_ndcg" not in text
    assert [line.split()[0] for line in text.splitlines()[4:7]] == ["1", "2", "3"]


def test_datasets_and_their_mean():
    one, two = board_of(FOUR, "one", 3), board_of(FOUR, "two", 4)
    mean = board_of(FOUR, "mean", 7)
    text = leaderboard_text(scores_of(pd.concat([one, two, mean])))
    titles = [line for line in text.splitlines() if "systems," in line]
    assert titles == [
        "mean over 2 datasets (unweighted): 3 systems, 7 queries",
        "one: 3 systems, 3 queries",
        "two: 3 systems, 4 queries",
    ]
    without = leaderboard_text(scores_of(pd.concat([one, two])))  # no system on both
    assert "mean over 2 datasets (unweighted): no system is scored on every dataset" in without


def test_undefined_scores_and_unequal_queries():
    values = {"rcp_ndcg": {"a": 0.5, "b": 0.4}, "qrel_ndcg": {"a": np.nan, "b": np.nan}}
    board = board_of(values)
    board.loc[board["metric"] == "qrel_ndcg", "n_queries"] = 0
    text = leaderboard_text(scores_of(board))
    (row,) = rows_of(text, "a")
    assert row.split() == ["1", "a", "0.5000", "-", "-", "0.88", "0.88"]
    assert "2 systems, queries: rcp_ndcg 7, qrel_ndcg 0" in text


def test_settings_and_notes():
    scores = scores_of(
        board_of(FOUR),
        ["q7 is left out"],
        unjudged="condense",
        gain_shape="minmax",
        drop_identical_ids=True,
        protocol="trecdl",
    )
    text = leaderboard_text(scores)
    for part in (
        "ties in pool order",
        "the judged pool is ranked",
        "unjudged documents leave the lists",
        "gain shape minmax",
        "query's id are dropped",
    ):
        assert part in text.splitlines()[0]
    assert "q7" not in text
    assert leaderboard_text(scores, notes=True).endswith("note: q7 is left out")


@pytest.mark.parametrize("placements", [4, 0])
def test_fit_summary(placements):
    items = load_items("nanobeir-qwen3.5-397b")
    labels = pd.DataFrame({"n_placements": [placements] * 2, "gain": [0.3, np.nan]})
    for c, criterion in enumerate(items.criteria):
        labels[f"passes_{criterion.id}"] = [min(c, placements), 0]
    queries = pd.DataFrame({"tau": [1.0, 2.0, np.nan], "alpha": [-5.0, -6.0, np.nan]})
    info = {"objective": 0.1125277264, "iterations": 9, "max_gradient": 2e-8}
    text = fit_summary(SimpleNamespace(labels=labels, queries=queries, items=items, info=info))
    assert f"3 queries, 2 documents (1 with a gain), {2 * placements} Stage B placements" in text
    (row,) = [line for line in text.splitlines() if line.startswith("C4")]
    passed = "37.5%" if placements else "-"
    assert row.split() == ["C4", "Direct", "Answer", "1.160", "+0.710", passed]
    assert "median 1.50" in text and "mean -5.50" in text
    assert "objective (Eq. 7) 0.112527726 after 9 iterations, largest gradient 2.0e-08" in text
