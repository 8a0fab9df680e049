"""Many windows at once: how many, in which order, and what one bad window or a full disk costs."""

import itertools
import threading
from collections import defaultdict

import pytest
from judging import (
    TASK,
    ask_server,
    completion,
    judge,
    mean_rate,
    refusal,
    same_tables,
    scripted,
    select,
    served,
    write_pool,
)

from rcp_bayes.errors import JudgeError
from rcp_bayes.io import PoolFolder
from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.judge.store import Store


@pytest.fixture
def pool(tmp_path) -> PoolFolder:
    return write_pool(tmp_path / "pool")


def good(body):
    return 200, completion(LexicalJudge().reply(body["messages"])), {}


def test_calls_in_flight_reach_the_limit_and_never_exceed_it(pool, tmp_path):
    """The server holds its answers until the limit is reached, or no call comes for a while."""
    changed, flying, most = threading.Condition(), 0, 0

    def answer(body, n):
        nonlocal flying, most
        with changed:
            flying += 1
            most = max(most, flying)
            changed.notify_all()
            if n > 1:  # the first call is made alone
                changed.wait_for(lambda: most >= 6, timeout=2)
            flying -= 1
        return good(body)

    with scripted(answer) as server:
        judge(pool, tmp_path / "out", ask_server(server), concurrency=6)
    assert most == 6


def test_queries_interleave_and_no_batch_starts_early(pool, tmp_path):
    """A window is asked only after all earlier batches of its query and stage were answered."""
    judge(pool, tmp_path / "out", concurrency=16)
    rows = select(
        tmp_path / "out",
        "SELECT w.query, c.stage, w.batch FROM attempts a JOIN windows w ON w.id = a.window"
        " JOIN configurations c ON c.id = w.configuration ORDER BY a.id",
    )
    batches = defaultdict(list)
    for query, stage, batch in rows:
        batches[query, stage].append(batch)
    assert len(batches) == 6 and all(found == sorted(found) for found in batches.values())
    # One query after the other would change the query twice.
    assert sum(a[0] != b[0] for a, b in itertools.pairwise(rows)) > 6


def test_a_window_that_the_server_cannot_answer_leaves_the_others(pool, tmp_path):
    """It answers 500 to one query's Stage B for ever; once it is well, a later run goes on."""
    query, sick = pool.queries["text"].iloc[0], True

    def answer(body, n):
        text = body["messages"][0]["content"]
        if sick and f"<query>\n{query}\n" in text and "<criteria>" in text:
            return 500, refusal("crash"), {}
        return good(body)

    out = tmp_path / "out"
    with scripted(answer) as server:
        given = ask_server(server, patience=0.3)
        with pytest.raises(JudgeError, match=r"crash.*same command"):
            judge(pool, out, given, concurrency=8)
        ((kept,),) = select(out, "SELECT count(*) FROM windows WHERE outcome NOTNULL")
        assert 0 < kept < 72
        sick = False
        result = judge(pool, out, given, concurrency=8)
    assert result.resumed == kept and result.windows == {"a": 54, "b": 18}


def test_the_reserve_takes_the_answers_in_flight_when_the_disk_is_full(pool, tmp_path, monkeypatch):
    """SQLite may not grow until the reserve is given back: what is under way is still stored."""
    prepare, out = Store._prepare, tmp_path / "out"
    given_back = []

    def limited(self):
        prepare(self)
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        self._db.execute(f"PRAGMA max_page_count={pages + 8}")

    def give_back(self):
        if not given_back:  # the second time is at the end, when the file is closed
            self._db.execute("PRAGMA max_page_count=100000")
        given_back.append(True)

    monkeypatch.setattr(Store, "_prepare", limited)
    monkeypatch.setattr(Store, "release_reserve", give_back)
    with served() as server:
        with pytest.raises(JudgeError, match=r"all answers are kept: make room.*same command"):
            judge(pool, out, ask_server(server), concurrency=8)
        answers = server.counts()["answers"]
        assert select(out, "SELECT count(*) FROM attempts") == [(answers,)]
        assert 0 < answers < 72
        monkeypatch.undo()
        assert judge(pool, out, ask_server(server)).calls == 72 - answers
        judge(pool, tmp_path / "whole", ask_server(server))
    assert same_tables(tmp_path / "whole", out)


def test_a_store_that_turns_read_only_is_one_line(pool, tmp_path, monkeypatch):
    prepare = Store._prepare

    def read_only(self):
        prepare(self)
        self._db.execute("PRAGMA query_only=1")

    monkeypatch.setattr(Store, "_prepare", read_only)
    with pytest.raises(JudgeError, match=r"cannot be written.*kept.*writable"):
        judge(pool, tmp_path / "out")


def test_an_error_of_the_rating_is_raised_and_what_was_answered_kept(pool, tmp_path):
    def broken(documents, answers):
        raise ZeroDivisionError("in the rating")

    given = dict(judge=LexicalJudge(), rate_b=mean_rate, task=TASK)
    with pytest.raises(ZeroDivisionError, match="in the rating"):
        judge_pool(pool, tmp_path / "out", rate_a=broken, **given)
    assert judge_pool(pool, tmp_path / "out", rate_a=mean_rate, **given).resumed >= 12
