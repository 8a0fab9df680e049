"""Aggregation of window preferences against the definition, one pair at a time."""

import numpy as np
import pytest
from stage_a import beats, build, pairs_of, random_windows

from rcp_bayes import pairs
from rcp_bayes.errors import InputError
from rcp_bayes.pairs import find_contestants, pair_matrices


def by_definition(windows, query, first, n):
    """Weight matrix and soft wins of one query whose documents start at `first`."""
    weight, wins = np.zeros((n, n)), np.zeros(n)
    for i, k, v, p in pairs_of(windows, query):
        i, k = i - first, k - first
        weight[i, k] += v
        weight[k, i] += v
        wins[i] += v * p
        wins[k] += v * (1 - p)
    return weight, wins


def test_a_scored_window_of_three():
    windows = build((0, (0, 1, 2), (1.0, 0.0, -1.0), None))
    found = pair_matrices(windows, find_contestants(np.array([0, 3]), windows), np.array([0]))
    one, two = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(found.weight[0], 2 / 3 * (1 - np.eye(3)), rtol=1e-15)
    np.testing.assert_allclose(found.wins[0], 2 / 3 * np.array([one + two, 1, 2 - one - two]))
    # w scores fix w - 1 differences, and that is the weight of a window in total.
    assert found.total == pytest.approx([2.0], rel=1e-15)


def test_a_ranking_counts_one_per_pair_and_a_tie_half_a_win_each():
    windows = build((0, (0, 1, 2), None, (1, 2, 2)))
    found = pair_matrices(windows, find_contestants(np.array([0, 3]), windows), np.array([0]))
    np.testing.assert_array_equal(found.weight[0], 1 - np.eye(3))
    np.testing.assert_array_equal(found.wins[0], [2, 0.5, 0.5])


@pytest.mark.parametrize("at_once", [1 << 20, 7])
def test_random_windows_add_up_as_defined(monkeypatch, at_once):
    # 7 pairs at once forces many blocks, some of a single window larger than that.
    monkeypatch.setattr(pairs, "_PAIRS_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    offset = np.array([0, 7, 7, 12, 21])
    windows = build(
        *(
            window
            for query in (0, 2, 3)
            for window in random_windows(rng, query, np.arange(*offset[query : query + 2]), 40)
        )
    )
    contestants = find_contestants(offset, windows)
    wanted = np.array([3, 0, 1])  # any order, an empty query among them
    found = pair_matrices(windows, contestants, wanted, n=10)
    assert found.present.sum(axis=1).tolist() == [9, 7, 0]
    for row, query in enumerate(wanted):
        weight, wins = by_definition(windows, query, offset[query], 10)
        np.testing.assert_allclose(found.weight[row], weight, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.wins[row], wins, rtol=0, atol=1e-12)
        assert found.total[row] == pytest.approx(weight.sum() / 2, abs=1e-12)


def test_documents_without_a_window_are_left_out():
    windows = build(*beats(0, 1, 3), (1, (5,), (0.5,), None))
    contestants = find_contestants(np.array([0, 4, 6, 8]), windows)
    assert contestants.document.tolist() == [1, 3, 5]
    assert contestants.offset.tolist() == [0, 2, 3, 3]
    assert contestants.local.tolist() == [-1, 0, -1, 1, -1, 0, -1, -1]
    assert contestants.size.tolist() == [2, 1, 0]
    found = pair_matrices(windows, contestants, np.array([0]))
    np.testing.assert_array_equal(found.weight[0], [[0, 1], [1, 0]])
    np.testing.assert_array_equal(found.wins[0], [1, 0])


def test_components_of_the_comparison_graph():
    windows = build(
        # 0-1-2 hang together, 3-4 apart, 5 met nobody.
        (0, (0, 1), (1.0, 0.0), None),
        (0, (1, 2), None, (1, 2)),
        (0, (3, 4), (0.0, 0.0), None),
        (0, (5,), (3.0,), None),
        (1, (8, 7, 6), (1.0, 2.0, 3.0), None),
    )
    contestants = find_contestants(np.array([0, 6, 9, 9]), windows)
    assert contestants.n_components.tolist() == [3, 1, 0]


def test_no_windows_at_all():
    contestants = find_contestants(np.array([0, 3]), build())
    assert contestants.size.tolist() == [0] and contestants.n_components.tolist() == [0]


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ((1, (3, 0), (1.0, 0.0), None), "document of another query"),
        ((1, (3, 4), (1.0, np.nan), None), "lacks the score"),
        ((1, (3, 4), None, (1, np.nan)), "lacks the score or the rank"),
    ],
)
def test_inconsistent_windows_are_refused(window, problem):
    windows = build((0, (0, 1, 2), (0.0, 1.0, 2.0), None), window)
    with pytest.raises(InputError, match=f"window 1 .*{problem}"):
        find_contestants(np.array([0, 3, 6]), windows)
