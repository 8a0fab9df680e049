"""Which documents share a window, for both stages (Section C.2, Table 2, Section C.7).

Every function here is pure: a batch of windows depends on the schedule, the query's name, its
pool and the answers to the query's earlier batches, and on nothing else. A run that was killed
and started again therefore plans exactly the windows that it had planned before, and one query's
windows do not depend on which other queries are judged.

A stage is a sequence of batches. Stage A asks one batch of random windows, one of windows
stratified by a preliminary Bradley-Terry fit, then adaptive batches, each after a refit. Stage B
asks one random batch and one stratified by a preliminary Rasch fit. The fits are handed in as a
`Rate` function, so that this module imports no model.

Randomness comes from the raw 64-bit output of PCG64, seeded by a digest of (seed, dataset, query,
stage, batch). NumPy guarantees that stream across versions and platforms; it does not guarantee
the methods of `Generator`, which are therefore not used.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np

Stage = Literal["a", "b"]

RANDOM = "random"
STRATIFIED = "stratified"
ADAPTIVE = "adaptive"

PAPER_POOL = 150  # the pool size at which Table 2 states its counts


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """One call to the judge: documents in the order shown.

    ``batch`` and ``index`` are 0-based places within the query's stage; ``(stage, index)`` names a
    window of a query. A window with ``mirrored`` set shows the documents of window ``index - 1``
    in reverse.
    """

    stage: Stage
    phase: str
    batch: int
    index: int
    documents: tuple[str, ...]
    mirrored: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a planned window; all three fields None means no valid answer.

    ``scores`` (Stage A, logits in [-5, 5]) or ``ranks`` (Stage A, 1 is best, equal ranks allowed)
    follow the order of ``window.documents``; ``passes`` (Stage B) holds one tuple of 0/1 per
    document, criteria in rubric order.
    """

    window: PlannedWindow
    scores: tuple[float, ...] | None = None
    ranks: tuple[float, ...] | None = None
    passes: tuple[tuple[int, ...], ...] | None = None

    @property
    def valid(self) -> bool:
        return self.scores is not None or self.ranks is not None or self.passes is not None


class Rate(Protocol):
    """A preliminary fit of one query: Bradley-Terry for Stage A, Rasch for Stage B.

    Receives the pool (n documents, pool order) and the query's valid answers, sorted by window
    index, and returns an estimate per document, shape (n,), on a logit scale, higher is better.
    NaN where a document has no valid answer. Stage B estimates only order the documents; Stage A
    estimates also give the predicted preferences of Eq. 6. Must be deterministic.
    """

    def __call__(self, documents: Sequence[str], answers: Sequence[Answer]) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many windows of which kind; the defaults are the full protocol of Table 2.

    Attributes
    ----------
    window : int
        w, documents per window; a pool of n documents uses min(w, n).
    random_a, stratified_a : Fraction
        Placements per document in the two coverage phases of Stage A, reversed copies not counted.
    mirror : bool
        Show every random and stratified Stage A window a second time in reverse.
    adaptive_batches : int
        Adaptive batches of Stage A, with a refit before each.
    adaptive : Fraction
        Adaptive windows per document of the pool and batch; at least one window a batch.
    total_a : Fraction or None
        When set, adaptive windows fill Stage A up to this many placements per document, spread
        evenly over the batches, and ``adaptive`` is not used.
    shrink : float
        Factor on the values of the boundaries that a picked adaptive window covers.
    random_b, stratified_b : Fraction
        Placements per document in the two halves of Stage B.
    total_b : Fraction or None
        When set, Stage B places each document this often, split in half (an odd window goes to
        the random half), and ``random_b`` and ``stratified_b`` are not used.
    seed : int
        Seed of every query's own stream.
    """

    window: int = 10
    random_a: Fraction = Fraction(53 * 10, PAPER_POOL)
    stratified_a: Fraction = Fraction(27 * 10, PAPER_POOL)
    mirror: bool = True
    adaptive_batches: int = 7
    adaptive: Fraction = Fraction(8, PAPER_POOL)
    total_a: Fraction | None = None
    shrink: float = 0.3
    random_b: Fraction = Fraction(50 * 10, PAPER_POOL)
    stratified_b: Fraction = Fraction(50 * 10, PAPER_POOL)
    total_b: Fraction | None = None
    seed: int = 42

    def describe(self) -> dict[str, Any]:
        """The settings as JSON types (fractions as text), the same text for the same schedule."""
        return {
            name: str(value) if isinstance(value, Fraction) else value
            for name, value in asdict(self).items()
        }

    def batches(self, stage: Stage, n: int) -> list[tuple[str, int]]:
        """Phase and number of calls of each batch of a stage, for a pool of ``n`` documents.

        Counts are round(p * n / w), half to even, with p placements per document and
        w = min(window, n). A pool of at most one window gets one adaptive window in all, since
        every adaptive window would hold the whole pool in the current order.
        """
        if n < 1:
            return []
        if stage == "b":
            return self._batches_b(n)
        copies = 2 if self.mirror else 1
        random, stratified = self._windows(self.random_a, n), self._windows(self.stratified_a, n)
        plan = [(RANDOM, copies * random), (STRATIFIED, copies * stratified)]
        if n <= self.window:
            adaptive = [1] if self.adaptive_batches else []
        elif self.total_a is not None:
            missing = self._windows(self.total_a, n) - copies * (random + stratified)
            adaptive = _spread(max(missing, self.adaptive_batches), self.adaptive_batches)
        else:
            adaptive = [max(1, round(self.adaptive * n))] * self.adaptive_batches
        return plan + [(ADAPTIVE, count) for count in adaptive]

    def calls(self, stage: Stage, n: int) -> int:
        """Number of calls of a stage for a pool of ``n`` documents."""
        return sum(count for _, count in self.batches(stage, n))

    def _batches_b(self, n: int) -> list[tuple[str, int]]:
        if self.total_b is not None:
            total = self._windows(self.total_b, n)
            random, stratified = total - total // 2, total // 2
        else:
            random, stratified = (
                self._windows(self.random_b, n),
                self._windows(self.stratified_b, n),
            )
        # A balanced phase of at least n placements shows every document.
        random = max(random, math.ceil(n / min(self.window, n)))
        return [(RANDOM, random), (STRATIFIED, stratified)]

    def _windows(self, placements: Fraction, n: int) -> int:
        return round(placements * n / min(self.window, n))


FULL = Schedule()

# Section C.7 gives totals: no reversed copies, 12.2 Stage A windows and 3.93 Stage B placements
# per passage. How Stage B splits into its halves is not stated; the even split is ours.
TREC_DL = Schedule(mirror=False, total_a=Fraction(122, 10), total_b=Fraction(393, 100))

PRESETS: Mapping[str, Schedule] = {"full": FULL, "trec-dl": TREC_DL}


def plan_batch(
    schedule: Schedule,
    stage: Stage,
    batch: int,
    documents: Sequence[str],
    answers: Sequence[Answer],
    rate: Rate,
    *,
    dataset: str,
    query_id: str,
) -> tuple[PlannedWindow, ...]:
    """The windows of one batch of one query.

    Parameters
    ----------
    batch : int
        0-based, below ``len(schedule.batches(stage, n))``.
    documents : sequence of str
        The pool, n distinct document ids in pool order.
    answers : sequence of Answer
        The answer to every window of the earlier batches of this stage, valid or not, any order.
    rate : Rate
        The preliminary fit; called once for a stratified or adaptive batch, never for a random one.

    Raises
    ------
    ValueError
        When documents repeat, the batch does not exist, or ``answers`` are not exactly those of
        the earlier batches.
    """
    n = len(documents)
    if len(set(documents)) != n:
        raise ValueError(f"pool of query {query_id!r} names a document twice")
    plan = schedule.batches(stage, n)
    if not 0 <= batch < len(plan):
        raise ValueError(f"stage {stage} has {len(plan)} batches for {n} documents, not {batch}")
    first = sum(count for _, count in plan[:batch])
    past = sorted(answers, key=lambda answer: answer.window.index)
    if [answer.window.index for answer in past] != list(range(first)):
        raise ValueError(
            f"batch {batch} of stage {stage} of query {query_id!r} needs the answers to windows "
            f"0..{first - 1}, each once; {len(past)} given"
        )
    phase, count = plan[batch]
    size = min(schedule.window, n)
    shown = _positions([answer.window for answer in past], documents)
    mirror = stage == "a" and schedule.mirror and phase != ADAPTIVE
    if mirror:
        count //= 2
    draw = Stream(schedule.seed, dataset, query_id, stage, batch)
    if phase == RANDOM:
        chosen = balanced_windows(n, count, size, draw)
    else:
        estimate = _estimate(rate, documents, past)
        if phase == STRATIFIED:
            seen = np.bincount(shown.ravel(), minlength=n) if shown.size else np.zeros(n, int)
            chosen = stratified_windows(estimate, seen, count, size, draw)
        else:
            chosen = adaptive_windows(estimate, shown, count, size, schedule.shrink)
    windows: list[PlannedWindow] = []
    for positions in chosen:
        names = tuple(documents[i] for i in positions)
        for flipped in (False, True) if mirror else (False,):
            order = names[::-1] if flipped else names
            index = first + len(windows)
            windows.append(PlannedWindow(stage, phase, batch, index, order, flipped))
    return tuple(windows)


class Stream:
    """Raw PCG64 output, seeded by the text of its names."""

    def __init__(self, *names: str | int) -> None:
        text = json.dumps(names, ensure_ascii=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode("ascii")).digest()
        self._bits = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big")))

    def raw(self, n: int) -> np.ndarray:
        """``n`` random 64-bit integers; sorting by them shuffles."""
        return self._bits.random_raw(n)

    def uniform(self, n: int) -> np.ndarray:
        """``n`` numbers in [0, 1), from the top 53 bits."""
        return (self.raw(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def balanced_windows(n: int, count: int, size: int, draw: Stream) -> list[list[int]]:
    """``count`` windows, each of the ``size`` documents shown least often so far.

    Ties are broken at random, and so is the order within a window. After every window the counts
    of any two documents differ by at most one.
    """
    shown = np.zeros(n, dtype=np.int64)
    windows: list[list[int]] = []
    for _ in range(count):
        # The order among equals is random, and so is the order of the window as a whole.
        chosen = np.lexsort((draw.raw(n), shown))[:size]
        shown[chosen] += 1
        windows.append(chosen[np.argsort(draw.raw(size))].tolist())
    return windows


def stratified_windows(
    estimate: np.ndarray, seen: np.ndarray, count: int, size: int, draw: Stream
) -> list[list[int]]:
    """``count`` windows of documents with similar estimates, balanced over the documents.

    The documents are taken in passes. A pass takes as many as fill whole windows, those placed
    least often in this phase first, then those ``seen`` least in earlier phases, then at random;
    sorts them by estimate; and cuts the order into consecutive windows. Ranks are jittered by up
    to half a window either way before each pass, so that a document meets new neighbours. Counts
    of this phase, and counts together with balanced ``seen``, differ by at most one.

    Parameters
    ----------
    estimate : (n,) float
        Higher is better; equal estimates are ordered at random.
    seen : (n,) int
        Placements in earlier phases.
    """
    n = len(estimate)
    placed = np.zeros(n, dtype=np.int64)
    windows: list[list[int]] = []
    while len(windows) < count:
        blocks = min(count - len(windows), n // size)
        chosen = np.lexsort((draw.raw(n), seen, placed))[: blocks * size]
        placed[chosen] += 1
        by_estimate = np.lexsort((draw.raw(n), -estimate))
        rank = np.empty(n)
        rank[by_estimate] = np.arange(n)
        jitter = (draw.uniform(n) - 0.5) * size
        order = chosen[np.argsort((rank + jitter)[chosen], kind="stable")]
        for block in order.reshape(blocks, size):
            windows.append(block[np.argsort(draw.raw(size))].tolist())
    return windows


def boundary_values(estimate: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Eq. 6: the value of each boundary between neighbours in the current order, shape (n-1,).

    v_r = p_r (1 - p_r) / (log2(r + 1) (1 + n_r)) for ranks r = 1..n-1, with
    p_r = sigmoid(estimate_(r) - estimate_(r+1)).

    Parameters
    ----------
    estimate : (n,) float
        Estimates in descending order, logits.
    together : (n-1,) int
        n_r, the windows that have already held both documents of the boundary.
    """
    gap = np.abs(np.diff(estimate))
    toss = np.exp(-gap) / (1.0 + np.exp(-gap)) ** 2  # p(1-p), written for any size of gap
    rank = np.arange(1, len(estimate))
    return toss / np.log2(rank + 1.0) / (1.0 + together)


def adaptive_windows(
    estimate: np.ndarray, shown: np.ndarray, count: int, size: int, shrink: float
) -> list[list[int]]:
    """The ``count`` windows of consecutive documents with the largest sums of Eq. 6, greedily.

    After each pick the values of the boundaries it covers are multiplied by ``shrink``; a window
    may be picked again. Equal sums go to the better-ranked window. Documents are shown in the
    current order, best first; equal estimates stand in pool order.

    Parameters
    ----------
    estimate : (n,) float
        Current Stage A estimates in pool order, logits.
    shown : (W, size) int
        Positions of the documents of every window shown so far, reversed copies included. A
        window without a valid answer counts too: the pair was shown, and a window that the judge
        never answers must not be picked for ever.
    """
    n = len(estimate)
    order = np.argsort(-estimate, kind="stable")
    held = np.zeros((n, len(shown)), dtype=bool)
    if len(shown):
        held[shown, np.arange(len(shown))[:, None]] = True
    together = (held[order[:-1]] & held[order[1:]]).sum(axis=1)
    value = boundary_values(estimate[order], together)
    values, span, last = value.tolist(), size - 1, n - size
    # fsum rounds once, so equal windows tie on every platform.
    sums = [math.fsum(values[s : s + span]) for s in range(last + 1)]
    windows = []
    for _ in range(count):
        start = sums.index(max(sums))
        values[start : start + span] = [v * shrink for v in values[start : start + span]]
        for s in range(max(0, start - span + 1), min(last, start + span - 1) + 1):
            sums[s] = math.fsum(values[s : s + span])  # only windows that share a boundary
        windows.append(order[start : start + size].tolist())
    return windows


def _estimate(rate: Rate, documents: Sequence[str], past: Sequence[Answer]) -> np.ndarray:
    """Estimates of every document, (n,); one without a valid answer stands at the median."""
    estimate = np.zeros(len(documents))
    valid = [answer for answer in past if answer.valid]
    if valid:
        estimate = np.array(rate(documents, valid), dtype=np.float64)
        if estimate.shape != (len(documents),):
            raise ValueError(f"rate gave shape {estimate.shape} for {len(documents)} documents")
    known = np.isfinite(estimate)
    estimate[~known] = np.median(estimate[known]) if known.any() else 0.0
    return estimate


def _positions(windows: Sequence[PlannedWindow], documents: Sequence[str]) -> np.ndarray:
    """(W, w) positions in the pool of the documents of past windows, all of one size."""
    place = {name: i for i, name in enumerate(documents)}
    try:
        rows = [[place[name] for name in window.documents] for window in windows]
    except KeyError as missing:
        raise ValueError(f"past window with document {missing}, not in the pool") from None
    return np.array(rows, dtype=np.int64)


def _spread(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` whole numbers that differ by at most one."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]
