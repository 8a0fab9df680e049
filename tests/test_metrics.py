"""nDCG kernels against brute force, worked examples and the paper's Proposition I.4."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcp_bayes.metrics import (
    RankedLists,
    TopK,
    dcg,
    discounts,
    ideal_dcg,
    ndcg,
    ndcg_of_lists,
    rank_lists,
    top_k,
)

gains_of = st.lists(st.floats(0, 1), min_size=1, max_size=7)
cutoffs = st.integers(1, 9)


def plain_ndcg(ordered, pool, k):
    """The definition, term by term."""
    best = sorted(pool, reverse=True)
    gain = math.fsum(g / math.log2(r + 2) for r, g in enumerate(ordered[:k]))
    ideal = math.fsum(g / math.log2(r + 2) for r, g in enumerate(best[:k]))
    return gain / ideal if ideal else float("nan")


@given(gains_of, cutoffs, st.randoms(use_true_random=False))
def test_definition_and_range(gains, k, random):
    scores = random.sample(range(100), len(gains))
    ordered = [g for _, g in sorted(zip(scores, gains, strict=True), reverse=True)]
    expected = plain_ndcg(ordered, gains, k)
    found = ndcg(gains, scores, k)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(found) or 0.0 <= found <= 1.0
    order = random.sample(range(len(gains)), len(gains))
    moved = ndcg(np.array(gains)[order], np.array(scores)[order], k)
    np.testing.assert_array_equal(moved, found)


@given(gains_of, cutoffs, st.data())
@settings(max_examples=60, deadline=None)
def test_tied_group_is_the_mean_over_all_its_orders(gains, k, data):
    scores = data.draw(
        st.lists(st.integers(0, 2), min_size=len(gains), max_size=len(gains)), label="scores"
    )
    orders = [
        [gains[d] for d in order]
        for order in itertools.permutations(range(len(gains)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    expected = np.mean([plain_ndcg(order, gains, k) for order in orders])
    np.testing.assert_allclose(ndcg(gains, scores, k), expected, rtol=1e-11)


@given(gains_of, cutoffs)
def test_best_order_scores_one(gains, k):
    found = ndcg(gains, gains, k)
    assert np.isnan(found) if max(gains) == 0 else found == pytest.approx(1.0, abs=1e-12)
    assert not found > 1


@given(gains_of, cutoffs, st.data())
def test_proposition_i4_invisible_swaps(gains, k, data):
    """Swapping equal gains changes nothing; different ones, one in the top k, change DCG."""
    n = len(gains)
    gains = np.round(gains, 1)
    a, b = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    order = np.arange(n)
    swapped = order.copy()
    swapped[[a, b]] = swapped[[b, a]]

    def value(ranking):
        lists = rank_lists(np.zeros(n, int), -np.argsort(ranking).astype(float), 1)
        return dcg(gains, top_k(lists, k))[0]

    before, after = value(order), value(swapped)
    if gains[a] == gains[b]:
        assert before == pytest.approx(after, abs=1e-14)
    elif min(a, b) < k:
        assert abs(before - after) > 1e-6  # the least: 0.1 times a difference of discounts
    # (ii), (iii): the share of pairs with equal gains, against its lower bounds
    if n > 1:
        _, counts = np.unique(gains, return_counts=True)
        share = (counts * (counts - 1)).sum() / (n * (n - 1))
        assert share >= (n - len(counts)) / (len(counts) * (n - 1)) - 1e-12
        if len(counts) <= 2:
            assert share >= (n - 2) / (2 * (n - 1)) - 1e-12


def test_ten_ties_under_trec_and_plain():
    """d1 … d10 all scored 0.5, only d10 relevant: ids descend as text, d10 comes ninth."""
    ids = [f"d{i}" for i in range(1, 11)]
    key = np.array([sorted(ids, reverse=True).index(i) for i in ids])
    gains = [0.0] * 9 + [1.0]
    assert ndcg(gains, [0.5] * 10, 10, tie_key=key) == pytest.approx(1 / math.log2(10))
    assert f"{ndcg(gains, [0.5] * 10, 10, tie_key=key):.5f}" == "0.30103"
    assert ndcg(gains, [0.5] * 10, 5, tie_key=key) == 0.0
    assert ndcg(gains, [0.5] * 10, 5) == pytest.approx(discounts(5).sum() / 10)


def test_single_precision_ties():
    """16777217 and 16777216 are one 32-bit float: the tie key decides, as in trec_eval."""
    gains, scores, key = [1.0, 0.0], [16777217.0, 16777216.0], [1, 0]
    assert ndcg(gains, scores, 1, tie_key=key) == 1.0
    assert ndcg(gains, scores, 1, tie_key=key, single_precision=True) == 0.0
    # Beyond the range of 32-bit floats both are infinite, without a warning.
    assert ndcg(gains, [1e300, 1e200], 1, tie_key=key, single_precision=True) == 0.0


def test_unranked_documents_stay_in_the_ideal():
    expected = (1 / math.log2(2)) / (1 + 1 / math.log2(3))
    assert ndcg([1.0, 1.0], [0.3, np.nan], 10) == pytest.approx(expected)
    assert ndcg([1.0, 1.0], [np.nan, np.nan], 10) == 0.0


def test_draws_are_scored_one_by_one():
    rng = np.random.default_rng(0)
    gains = rng.random((3, 2, 12))
    scores = rng.integers(0, 5, 12)
    rows = [[ndcg(gains[i, j], scores, 4) for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(ndcg(gains, scores, 4), rows, rtol=1e-14)
    assert ndcg(gains, scores, 4).shape == (3, 2)


def random_lists(rng, n_queries, n_systems, ties):
    sizes = rng.integers(1, 40, n_queries)
    offset = np.concatenate(([0], np.cumsum(sizes)))
    query = np.repeat(np.arange(n_queries), sizes)
    ranked = [np.flatnonzero(rng.random(len(query)) < 0.7) for _ in range(n_systems)]
    document = np.concatenate(ranked)
    list_of = np.concatenate([s * n_queries + query[rows] for s, rows in enumerate(ranked)])
    score = rng.integers(0, 8, len(document)) * 1.0 if ties else rng.random(len(document))
    return offset, document, list_of, score, n_systems * n_queries


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_many_lists_at_once_equal_one_by_one(ties, k):
    rng = np.random.default_rng(k)
    offset, document, list_of, score, n_lists = random_lists(rng, 9, 3, ties)
    gains = rng.random((2, offset[-1]))
    shuffled = rng.permutation(len(document))
    document, list_of, score = document[shuffled], list_of[shuffled], score[shuffled]
    top = top_k(rank_lists(list_of, score, n_lists), k)
    top = TopK(top.offset, document[top.item], top.weight, top.share)
    found = ndcg_of_lists(gains, top, np.arange(n_lists) % 9, offset, k)
    for one in range(n_lists):
        lo, hi = offset[one % 9], offset[one % 9 + 1]
        scores = np.full(hi - lo, np.nan)
        scores[document[list_of == one] - lo] = score[list_of == one]
        np.testing.assert_allclose(found[:, one], ndcg(gains[:, lo:hi], scores, k), rtol=1e-12)
        places = top.share[top.offset[one] : top.offset[one + 1]].sum()
        assert places == pytest.approx(min(k, (list_of == one).sum()))


def test_work_over_draws_is_the_same_in_pieces(monkeypatch):
    rng = np.random.default_rng(5)
    offset, document, list_of, score, n_lists = random_lists(rng, 6, 2, True)
    top = top_k(rank_lists(list_of, score, n_lists), 5)
    top = TopK(top.offset, document[top.item], top.weight, top.share)
    gains = rng.random((11, offset[-1]))
    whole = dcg(gains, top), ideal_dcg(gains, offset, 5)
    monkeypatch.setattr("rcp_bayes.metrics._CHUNK", 300)
    np.testing.assert_array_equal(dcg(gains, top), whole[0])
    np.testing.assert_array_equal(ideal_dcg(gains, offset, 5), whole[1])


def test_ideal_of_uneven_queries():
    rng = np.random.default_rng(6)
    sizes = np.array([0, 1, 300, 2, 0, 17, 64, 65])
    offset = np.concatenate(([0], np.cumsum(sizes)))
    gains = rng.random(offset[-1])
    expected = [
        sum(g / math.log2(r + 2) for r, g in enumerate(sorted(gains[lo:hi], reverse=True)[:10]))
        for lo, hi in itertools.pairwise(offset)
    ]
    np.testing.assert_allclose(ideal_dcg(gains, offset, 10), expected, rtol=1e-13)


@given(st.data())
@settings(deadline=None)
def test_condensing_equals_ranking_what_is_left(data):
    n = data.draw(st.integers(1, 12))
    whole = st.lists(st.integers(0, 2), min_size=n, max_size=n)
    list_of, score = np.array(data.draw(whole)), np.array(data.draw(whole)) * 1.0
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    found = top_k(rank_lists(list_of, score, 3).keep(kept), 3)
    again = top_k(rank_lists(list_of[kept], score[kept], 3), 3)
    assert found.offset.tolist() == again.offset.tolist()
    assert found.item.tolist() == np.flatnonzero(kept)[again.item].tolist()
    np.testing.assert_allclose(found.weight, again.weight, rtol=1e-14)


def test_documents_without_a_gain_count_zero():
    top = TopK(np.array([0, 2, 3]), np.array([-1, 0, -1]), discounts(3), np.ones(3))
    assert dcg(np.array([0.5]), top).tolist() == [0.5 * discounts(3)[1], 0.0]


def test_empty_lists():
    lists = rank_lists(np.empty(0, int), np.empty(0), 2)
    assert isinstance(lists, RankedLists)
    top = top_k(lists, 3)
    assert dcg(np.ones((4, 1)), top).tolist() == [[0.0, 0.0]] * 4


def test_refused():
    for gains in ([-0.1], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="gains must be finite"):
            ndcg(gains, [1.0])
    with pytest.raises(ValueError, match="scores must be finite"):
        ndcg([1.0], [np.inf])
    with pytest.raises(ValueError, match="differ in documents"):
        ndcg([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="cutoff"):
        ndcg([1.0], [1.0], 0)
