"""What goes into the tables where prompts, rubrics, judges or decoders change."""

from dataclasses import replace

import pandas as pd
import pytest
from judging import SMALL, TABLES, TASK, Counting, Sloppy, judge, select, table, write_pool

from rcp_bayes.errors import InputError
from rcp_bayes.io import PoolFolder, read_judgments
from rcp_bayes.judge import reading
from rcp_bayes.judge.decode import Decoded
from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.export import reparse
from rcp_bayes.judge.task import Task
from rcp_bayes.observations import observe
from rcp_bayes.rubric import Criterion, Rubric


@pytest.fixture
def pool(tmp_path) -> PoolFolder:
    return write_pool(tmp_path / "pool")


def changed_prompt(task: Task) -> Task:
    return replace(task, prompts=replace(task.prompts, stage_b=task.prompts.stage_b + "\n"))


def test_answers_under_another_prompt_do_not_pool(pool, tmp_path):
    out = tmp_path / "out"
    judge(pool, out)
    first = table(out, "stage_b")
    done = judge(pool, out, task=changed_prompt(TASK))
    second = table(out, "stage_b")
    assert done.resumed == done.windows["a"] and done.calls == done.windows["b"]
    assert len(second) == len(first) and set(second["window_id"]).isdisjoint(first["window_id"])
    (line,) = done.exported.set_aside
    assert "stage b" in line and f"{done.windows['b']} windows" in line and "not exported" in line
    both = judge(pool, out, task=changed_prompt(TASK), pool_digests=True)
    assert both.calls == 0 and both.exported.set_aside == ()
    assert len(table(out, "stage_b")) == 2 * len(first)
    assert len(table(out, "stage_a")) * 2 == 3 * 5 * 2 * SMALL.calls("a", 20)
    # The earlier prompt again: its answers are all there.
    assert judge(pool, out).calls == 0
    pd.testing.assert_frame_equal(table(out, "stage_b"), first)


def test_stage_a_is_not_paid_again_for_another_rubric(pool, tmp_path):
    out = tmp_path / "out"
    judge(pool, out)
    rubric = Rubric(
        (Criterion("easy", "Easy", "Is it on topic?"), Criterion("hard", "Hard", "All?"))
    )
    done = judge(pool, out, task=replace(TASK, rubric=rubric))
    assert done.resumed == done.windows["a"] and done.calls == done.windows["b"]
    assert read_judgments(out).criteria == ("easy", "hard")
    # Other criteria have no place in one table, whatever is asked.
    again = judge(pool, out, task=replace(TASK, rubric=rubric), pool_digests=True)
    assert "other criteria" in again.exported.set_aside[0]
    digests = select(out, "SELECT stage, prompt, rubric FROM configurations ORDER BY id")
    assert digests[2][2] == rubric.digest and digests[0][2] is None
    body = select(out, f"SELECT body FROM texts WHERE digest = '{rubric.digest}'")
    assert body == [(rubric.text,)]


def test_two_judges_stand_side_by_side(pool, tmp_path):
    class Second(LexicalJudge):
        name = "second"

    out = tmp_path / "out"
    judge(pool, out)
    first = table(out, "stage_a")
    judge(pool, out, Second())
    rows = table(out, "stage_a")
    assert rows["judge"].value_counts().to_dict() == {"lexical": len(first), "second": len(first)}
    with pytest.raises(InputError, match="--judge NAME"):
        observe(read_judgments(out))
    observe(read_judgments(out), judge="second")


def test_a_changed_pool_is_refused_before_anything_is_asked(pool, tmp_path):
    judge(pool, tmp_path / "out")
    corpus = pool.corpus.copy()
    corpus.loc[0, "text"] += " changed"
    counting = Counting()
    with pytest.raises(InputError, match="'q0' was judged on another pool"):
        judge(replace(pool, corpus=corpus), tmp_path / "out", counting)
    assert counting.calls == 0


def test_stored_answers_are_read_again_without_calls(pool, tmp_path, monkeypatch):
    out = tmp_path / "out"
    judge(pool, out, Sloppy("q1-d7 ", "a"))
    before = {name: table(out, name) for name in TABLES}
    same = reparse(out)
    assert (same.changed, same.gained, same.lost) == (0, 0, 0)
    n_bad = before["stage_a"]["invalid"].notna().sum() // 5

    def newer(stage, response, labels, criteria=()):
        if response.content.startswith("None of"):
            return Decoded(scores=(-5.0,) * len(labels))
        return decode(stage, response, labels, criteria)

    decode = reading.decode
    monkeypatch.setattr(reading, "decode", newer)
    done = reparse(out)
    assert (done.changed, done.gained, done.lost) == (n_bad, n_bad, 0)
    after = table(out, "stage_a")
    was_bad = before["stage_a"]["invalid"].notna()
    assert after["invalid"].isna().all() and (after["score"][was_bad] == -5.0).all()
    pd.testing.assert_frame_equal(after[~was_bad], before["stage_a"][~was_bad])
    pd.testing.assert_frame_equal(table(out, "stage_b"), before["stage_b"])
    # A finished pass stays finished: nothing is asked because the plan would now be another one.
    assert judge(pool, out, Counting(0)).calls == 0


def test_what_a_newer_decoder_cannot_read_is_invalid_and_asked_again(pool, tmp_path, monkeypatch):
    out = tmp_path / "out"
    judge(pool, out)
    whole = table(out, "stage_a")
    decode = reading.decode
    monkeypatch.setattr(
        reading, "decode",
        lambda stage, *rest: Decoded("schema") if stage == "a" else decode(stage, *rest),
    )  # fmt: skip
    done = reparse(out)
    n = len(whole) // 5
    assert (done.changed, done.gained, done.lost) == (n, 0, n)
    assert set(table(out, "stage_a")["invalid"]) == {"schema"}
    monkeypatch.setattr(reading, "decode", decode)
    again = judge(pool, out)
    assert again.calls == n  # each once more, of three attempts in all
    pd.testing.assert_frame_equal(table(out, "stage_a"), whole)


def test_reparse_needs_a_store(tmp_path):
    with pytest.raises(InputError, match=r"no judge\.sqlite"):
        reparse(tmp_path)
