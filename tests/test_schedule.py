"""Windows of both stages: counts, coverage, balance, order, determinism (Section C.2)."""

import hashlib
import json
from fractions import Fraction

import numpy as np
import pytest

from rcp_bayes.schedule import (
    FULL,
    PRESETS,
    TREC_DL,
    Answer,
    PlannedWindow,
    Schedule,
    Stream,
    adaptive_windows,
    balanced_windows,
    boundary_values,
    plan_batch,
    stratified_windows,
)

SIZES = [1, 2, 7, 10, 11, 13, 20, 30, 31, 99, 150, 287]


def pool(n):
    return [f"d{i:03d}" for i in range(n)]


def ability(name):
    """A fixed irregular truth per document, so that answers need no model."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:6], 16) / 16**6 * 8 - 4


def truth_rate(documents, answers):
    assert answers, "a rate is only asked about answers"
    return np.array([ability(name) for name in documents])


def answer(window):
    if window.stage == "a":
        return Answer(window, scores=tuple(ability(name) for name in window.documents))
    return Answer(window, passes=tuple((int(ability(name) > 0),) for name in window.documents))


def run(stage, n, schedule=FULL, rate=truth_rate, query_id="q1", dataset="default", reply=answer):
    answers = []
    for batch in range(len(schedule.batches(stage, n))):
        windows = plan_batch(
            schedule, stage, batch, pool(n), answers, rate, dataset=dataset, query_id=query_id
        )
        answers += [reply(window) for window in windows]
    return [a.window for a in answers]


def counts(windows, n):
    place = {name: i for i, name in enumerate(pool(n))}
    flat = [place[name] for window in windows for name in window.documents]
    return np.bincount(flat, minlength=n)


def spread(values):
    return int(values.max() - values.min())


def test_paper_counts_at_150():
    """Table 2: 80 coverage calls doubled, 56 adaptive; Table 4: 216 calls, 100 windows."""
    assert FULL.batches("a", 150) == [("random", 106), ("stratified", 54)] + [("adaptive", 8)] * 7
    assert FULL.calls("a", 150) == 216
    assert FULL.batches("b", 150) == [("random", 50), ("stratified", 50)]
    windows = run("a", 150)
    assert counts(windows, 150).mean() == pytest.approx(14.4)
    assert counts(run("b", 150), 150).mean() == pytest.approx(100 * 10 / 150)


@pytest.mark.parametrize(
    ("n", "random", "stratified", "adaptive", "half_b"),
    [
        # p n / w by hand: 53 n / 150, 27 n / 150, 8 n / 150, 50 n / 150 above w = 10 documents;
        # p itself (3.53, 1.8, -, 3.33) at or below.
        (1, 4, 2, [1], 3),
        (5, 4, 2, [1], 3),
        (10, 4, 2, [1], 3),
        (11, 4, 2, [1] * 7, 4),
        (30, 11, 5, [2] * 7, 10),
        (75, 26, 14, [4] * 7, 25),  # 26.5 and 13.5: half to even
        (287, 101, 52, [15] * 7, 96),
    ],
)
def test_counts_scale(n, random, stratified, adaptive, half_b):
    expected = [("random", 2 * random), ("stratified", 2 * stratified)]
    assert FULL.batches("a", n) == expected + [("adaptive", count) for count in adaptive]
    assert FULL.batches("b", n) == [("random", half_b), ("stratified", half_b)]


def test_trec_dl_totals():
    """Section C.7: 12.2 Stage A windows and 3.93 Stage B placements per passage, no reverses."""
    n = 287
    plan = TREC_DL.batches("a", n)
    assert plan[:2] == [("random", 101), ("stratified", 52)]  # the placements of the full protocol
    assert len(plan) == 9
    assert TREC_DL.calls("a", n) == round(Fraction(122, 10) * n / 10) == 350
    assert spread(np.array([count for _, count in plan[2:]])) <= 1
    assert TREC_DL.batches("b", n) == [("random", 57), ("stratified", 56)]
    assert not any(window.mirrored for window in run("a", 40, TREC_DL))
    assert set(PRESETS) == {"full", "trec-dl"}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("schedule", [FULL, TREC_DL], ids=["full", "trec-dl"])
def test_coverage_balance_and_shape(n, schedule):
    for stage in "ab":
        windows = run(stage, n, schedule)
        assert [w.index for w in windows] == list(range(schedule.calls(stage, n)))
        for window in windows:
            assert len(window.documents) == len(set(window.documents)) == min(10, n)
        once = [w for w in windows if not w.mirrored]
        random = counts([w for w in once if w.phase == "random"], n)
        stratified = counts([w for w in once if w.phase == "stratified"], n)
        assert spread(random) <= 1
        assert spread(stratified) <= 1
        assert spread(random + stratified) <= 1
        assert random.min() >= 1


@pytest.mark.parametrize("n", [8, 30, 150])
def test_mirrored_windows_follow_their_original(n):
    windows = run("a", n)
    for window in windows:
        if window.mirrored:
            original = windows[window.index - 1]
            assert original.documents == window.documents[::-1]
            assert (original.phase, original.batch) == (window.phase, window.batch)
            assert not original.mirrored
    coverage = [w for w in windows if w.phase != "adaptive"]
    assert sum(w.mirrored for w in coverage) * 2 == len(coverage)
    assert not any(w.mirrored for w in windows if w.phase == "adaptive")
    assert not any(w.mirrored for w in run("b", n))


def test_partners_vary_in_random_windows():
    """BIBD-like: 53 windows of 10 give a document at most 9 partners each; most are new ones."""
    windows = balanced_windows(150, 53, 10, Stream(1))
    partners = [set() for _ in range(150)]
    for window in windows:
        for i in window:
            partners[i] |= set(window) - {i}
    # 3.53 windows x 9 = 31.8 partners when none repeats.
    assert np.mean([len(p) for p in partners]) > 27


def test_stratified_windows_group_similar_documents():
    n, size = 150, 10
    estimate = np.array([ability(name) for name in pool(n)])
    rank = np.argsort(np.argsort(-estimate))
    windows = stratified_windows(estimate, np.zeros(n, int), 27, size, Stream(3))
    # Ten of 150 ranks at random span 123 on average; a block of jittered ranks spans at most
    # the block and half a window of jitter on either side of both ends.
    assert max(spread(rank[w]) for w in windows) <= 3 * size
    assert len({tuple(sorted(w)) for w in windows}) == 27  # later passes give new neighbours


def test_stratified_windows_break_ties_at_random():
    windows = stratified_windows(np.zeros(60), np.zeros(60, int), 6, 10, Stream(5))
    assert any(spread(np.array(w)) > 30 for w in windows)


def test_boundary_values_by_hand():
    """Eq. 6 at ranks 1, 2, 3: gaps 0, ln 3 and 0 give p(1-p) = 1/4, 3/16, 1/4."""
    estimate = np.array([np.log(3), np.log(3), 0.0, 0.0])
    values = boundary_values(estimate, np.array([0, 1, 3]))
    expected = [0.25 / 1, (3 / 16) / np.log2(3) / 2, 0.25 / 2 / 4]
    np.testing.assert_allclose(values, expected, rtol=1e-14)
    assert boundary_values(np.array([5000.0, -5000.0]), np.array([0]))[0] == 0.0


def test_adaptive_windows_by_hand():
    """Five equal documents, windows of three: the picks follow from 1/4 / log2(r+1) / (1+n)."""
    estimate = np.zeros(5)
    none = np.zeros((0, 3), dtype=int)
    # v = .25 x (1, .6309, .5, .4307): sums 1.6309, 1.1309, .9307 (x .25). Pick ranks 1-3; then
    # (.3, .1893, .5, .4307): .4893, .6893, .9307 -> ranks 3-5; then (.3, .1893, .15, .1292):
    # .4893, .3393, .2792 -> ranks 1-3 again.
    picks = adaptive_windows(estimate, none, 3, 3, 0.3)
    assert picks == [[0, 1, 2], [2, 3, 4], [0, 1, 2]]
    # Two earlier windows (one mirrored) hold 0, 1, 2: n = (2, 2, 0, 0) gives
    # (.3333, .2103, .5, .4307): sums .5436, .7103, .9307.
    past = np.array([[0, 1, 2], [2, 1, 0]])
    assert adaptive_windows(estimate, past, 1, 3, 0.3) == [[2, 3, 4]]
    # The order shown is the estimated one, best first, equal estimates in pool order.
    assert adaptive_windows(np.array([0.0, 2.0, 0.0]), none, 1, 3, 0.3) == [[1, 0, 2]]


def test_adaptive_windows_are_consecutive_in_the_refitted_order():
    n = 60
    order = sorted(pool(n), key=ability, reverse=True)
    for window in run("a", n):
        if window.phase == "adaptive":
            start = order.index(window.documents[0])
            assert list(window.documents) == order[start : start + 10]


def test_each_batch_refits_once_on_all_earlier_valid_answers():
    seen = []

    def rate(documents, answers):
        seen.append([a.window.index for a in answers])
        return truth_rate(documents, answers)

    def reply(window):
        return Answer(window) if window.index % 5 == 0 else answer(window)

    plan = FULL.batches("a", 30)
    run("a", 30, rate=rate, reply=reply)
    ends = np.cumsum([count for _, count in plan])
    assert seen == [[i for i in range(end) if i % 5] for end in ends[:-1]]


def test_batch_is_a_pure_function_of_its_inputs():
    n, schedule = 40, FULL
    first = run("a", n)
    assert run("a", n) == first
    # Resume: any batch from the stored answers in any order.
    for batch in range(len(schedule.batches("a", n))):
        past = [answer(w) for w in reversed(first) if w.batch < batch]
        again = plan_batch(
            schedule, "a", batch, pool(n), past, truth_rate, dataset="default", query_id="q1"
        )
        assert list(again) == [w for w in first if w.batch == batch]


def test_streams_depend_on_every_name():
    base = run("b", 30)
    assert run("b", 30, query_id="q2") != base
    assert run("b", 30, dataset="other") != base
    assert run("b", 30, Schedule(seed=43)) != base
    # Names are separated: ("ab", "c") is not ("a", "bc"); an id may hold any character.
    assert (Stream(42, "ab", "c").raw(4) != Stream(42, "a", "bc").raw(4)).any()
    Stream(42, "\ud800", "日本").raw(1)


def test_stream_is_the_documented_one():
    """PCG64 over the SHA-256 of compact JSON: the same numbers on every platform and version."""
    text = json.dumps([42, "default", "q1", "a", 0], separators=(",", ":"))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    expected = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(5)
    np.testing.assert_array_equal(Stream(42, "default", "q1", "a", 0).raw(5), expected)
    uniform = Stream(7).uniform(20000)
    assert 0 <= uniform.min() and uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / 20000))


def test_first_windows_are_pinned():
    """Printed once and kept: a change here breaks the resumption of every stored pass."""
    assert run("a", 12)[0].documents == PINNED_A
    assert run("b", 12)[0].documents == PINNED_B


PINNED_A = tuple("d007 d009 d005 d001 d010 d004 d011 d006 d003 d002".split())
PINNED_B = tuple("d010 d002 d000 d011 d003 d009 d008 d006 d007 d005".split())


def test_no_valid_answer_still_plans():
    """Every answer lost: no estimate, the schedule goes on in pool order."""
    windows = run("a", 30, rate=lambda d, a: pytest.fail("rated nothing"), reply=Answer)
    assert len(windows) == FULL.calls("a", 30)


def test_unknown_estimates_stand_at_the_median():
    def rate(documents, answers):
        out = truth_rate(documents, answers)
        out[3] = np.nan
        return out

    known = [ability(name) for name in pool(25) if name != "d003"]
    filled = truth_rate(pool(25), [1])
    filled[3] = np.median(known)
    assert run("a", 25, rate=rate) == run("a", 25, rate=lambda d, a: filled.copy())


def test_empty_pool_plans_nothing():
    assert FULL.batches("a", 0) == FULL.batches("b", 0) == []
    assert FULL.calls("a", 0) == 0


def test_stage_b_shows_every_document_under_any_settings():
    thin = Schedule(random_b=Fraction(1, 4), stratified_b=Fraction(1, 4))
    assert counts(run("b", 45, thin), 45).min() >= 1


def test_bad_calls_are_refused():
    names = dict(dataset="default", query_id="q1")
    with pytest.raises(ValueError, match="names a document twice"):
        plan_batch(FULL, "a", 0, ["x", "x"], [], truth_rate, **names)
    with pytest.raises(ValueError, match="9 batches for 30"):
        plan_batch(FULL, "a", 9, pool(30), [], truth_rate, **names)
    with pytest.raises(ValueError, match=r"windows 0\.\.21"):
        plan_batch(FULL, "a", 1, pool(30), [], truth_rate, **names)
    stranger = [Answer(PlannedWindow("a", "random", 0, i, ("z",))) for i in range(22)]
    with pytest.raises(ValueError, match="not in the pool"):
        plan_batch(FULL, "a", 1, pool(30), stranger, truth_rate, **names)
    past = [answer(w) for w in run("a", 30) if w.batch < 1]
    with pytest.raises(ValueError, match="shape"):
        plan_batch(FULL, "a", 1, pool(30), past, lambda d, a: np.zeros(3), **names)


def test_description_is_json_and_names_every_setting():
    text = json.dumps(FULL.describe(), sort_keys=True)
    assert json.loads(text)["random_a"] == "53/15"
    assert text != json.dumps(TREC_DL.describe(), sort_keys=True)
