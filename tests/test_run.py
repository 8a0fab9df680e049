"""The loop over phases: what is asked, how often, and that the tables say what came back."""

import asyncio
import itertools
import json
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
from judging import (
    SMALL,
    TABLES,
    TASK,
    Counting,
    Sloppy,
    judge,
    mean_rate,
    same_tables,
    select,
    table,
    write_pool,
)

from rcp_bayes.errors import InputError, JudgeError, UsageError
from rcp_bayes.io import PoolFolder, read_judgments
from rcp_bayes.judge import reading
from rcp_bayes.judge.embedded import Asked, LexicalJudge
from rcp_bayes.judge.material import in_shard, parse_shard
from rcp_bayes.judge.prompts import cut_text, load_prompts
from rcp_bayes.judge.task import Task
from rcp_bayes.observations import observe
from rcp_bayes.schedule import Answer, PlannedWindow, plan_batch


@pytest.fixture
def pool(tmp_path) -> PoolFolder:
    return write_pool(tmp_path / "pool")


def test_every_planned_window_is_asked_once_and_stands_in_the_tables(pool, tmp_path):
    counting = Counting()
    done = judge(pool, tmp_path / "out", counting)
    calls = {stage: SMALL.calls(stage, 20) for stage in "ab"}
    assert counting.calls == done.calls == 3 * sum(calls.values())
    assert done.windows == {stage: 3 * n for stage, n in calls.items()} and done.resumed == 0
    for stage, name in zip("ab", TABLES, strict=True):
        rows = table(tmp_path / "out", name)
        windows = rows.groupby(["query_id", "window_id"], sort=False)
        assert windows.ngroups == 3 * calls[stage] and (windows.size() == 5).all()
        assert (windows["position"].apply(list).apply(lambda p: p == [0, 1, 2, 3, 4])).all()
        assert set(rows["judge"]) == {"lexical"} and rows["invalid"].isna().all()
        assert rows["query_id"].drop_duplicates().tolist() == ["q0", "q1", "q2"]  # pool order
    judgments = read_judgments(tmp_path / "out")
    assert judgments.criteria == ("C1", "C2", "C3", "C4", "C5")
    counts = observe(judgments).counts
    assert counts["stage_a"]["invalid_windows"] == counts["stage_b"]["invalid_windows"] == 0


def test_the_values_are_the_judges_own(pool, tmp_path):
    """Each row against the judge asked directly about its query and document."""
    from rcp_bayes.judge.embedded import lexical_match

    judge(pool, tmp_path / "out")
    texts = pool.corpus.set_index("doc_id")["text"]
    queries = pool.queries.set_index("query_id")["text"]
    for _, row in table(tmp_path / "out", "stage_b").iterrows():
        match = lexical_match(queries[row.query_id], texts[row.doc_id])
        passes = [int(match > 0.1 + 0.6 * c / 4) for c in range(5)]
        assert [row.C1, row.C2, row.C3, row.C4, row.C5] == passes


def test_windows_are_those_of_the_schedule_given_the_answers_before(pool, tmp_path):
    judge(pool, tmp_path / "out")
    rows = table(tmp_path / "out", "stage_a").query("query_id == 'q1'")
    documents = tuple(pool.candidates.query("query_id == 'q1'")["doc_id"])
    answers: list[Answer] = []
    shown = [
        (phase, tuple(group["doc_id"]), tuple(group["score"]))
        for (_, phase), group in rows.groupby(["window_id", "phase"], sort=False)
    ]
    for batch in range(len(SMALL.batches("a", 20))):
        planned = plan_batch(
            SMALL, "a", batch, documents, answers, mean_rate, dataset="default", query_id="q1"
        )
        for window in planned:
            phase, names, scores = shown[window.index]
            assert (window.phase, window.documents) == (phase, names)
            answers.append(Answer(window, scores=scores))
    assert len(answers) == len(shown)


def test_a_querys_windows_do_not_depend_on_the_other_queries(pool, tmp_path):
    judge(pool, tmp_path / "all")
    alone = replace(pool, candidates=pool.candidates.query("query_id == 'q2'"))
    judge(alone, tmp_path / "alone")
    for name in TABLES:
        expected = table(tmp_path / "all", name).query("query_id == 'q2'").reset_index(drop=True)
        pd.testing.assert_frame_equal(table(tmp_path / "alone", name), expected)


def test_judging_again_asks_nothing_and_writes_the_same_tables(pool, tmp_path):
    out = tmp_path / "out"
    judge(pool, out)
    before = {name: (out / f"{name}.parquet").read_bytes() for name in TABLES}
    for name in TABLES:
        (out / f"{name}.parquet").unlink()
    counting = Counting()
    done = judge(pool, out, counting)
    assert counting.calls == done.calls == 0 and done.resumed == sum(done.windows.values())
    assert before == {name: (out / f"{name}.parquet").read_bytes() for name in TABLES}


@pytest.mark.parametrize("fail_after", [0, 1, 13, 29, 47, 70])
def test_a_pass_that_broke_off_goes_on_where_it_stopped(pool, tmp_path, fail_after):
    judge(pool, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(JudgeError, match="gone"):
        judge(pool, out, Counting(fail_after), concurrency=3)
    assert not (out / "stage_a.parquet").exists()
    assert select(out, "SELECT count(*) FROM attempts") == [(fail_after,)]
    counting = Counting()
    done = judge(pool, out, counting, concurrency=5)
    assert counting.calls == sum(done.windows.values()) - fail_after
    assert done.resumed == fail_after
    assert same_tables(tmp_path / "whole", out)


def test_stages_may_be_judged_one_after_the_other(pool, tmp_path):
    judge(pool, tmp_path / "both")
    out = tmp_path / "out"
    judge(pool, out, task=replace(TASK, stages=("b",)))
    assert not (out / "stage_a.parquet").exists()
    judge(pool, out, task=replace(TASK, stages=("a",)))
    assert same_tables(tmp_path / "both", out)


def test_shards_split_the_queries_by_name(tmp_path):
    from rcp_bayes.judge.material import Material

    queries = Material(write_pool(tmp_path / "pool", queries=40, documents=2)).queries
    parts = [[q.query_id for q in queries if in_shard(q, (i, 3))] for i in (1, 2, 3)]
    assert sorted(itertools.chain(*parts)) == sorted(q.query_id for q in queries)
    assert min(map(len, parts)) >= 5  # 40 fair draws among 3: below 5 with p < 1e-3
    assert parse_shard("2/3") == (2, 3) and parse_shard(None) is None
    for text in ("0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/3/3"):
        with pytest.raises(UsageError, match="--shard"):
            parse_shard(text)


def test_small_pools_down_to_one_document(tmp_path):
    pool = write_pool(tmp_path / "pool", queries=2, documents=1)
    done = judge(pool, tmp_path / "out", task=Task())
    assert done.windows == {stage: 2 * Task().schedule.calls(stage, 1) for stage in "ab"}
    assert observe(read_judgments(tmp_path / "out")).counts["stage_a"]["single_document_windows"]


def test_a_notebooks_running_loop_is_no_hindrance(pool, tmp_path):
    async def cell():
        return judge(pool, tmp_path / "out")

    assert asyncio.run(cell()).calls > 0


def test_an_interrupt_before_anything_is_answered_in_a_notebook_leaves_a_store(pool, tmp_path):
    class Interrupted(LexicalJudge):
        def reply(self, messages):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(pool, tmp_path / "out", Interrupted())
    assert judge(pool, tmp_path / "out").resumed == 0


def test_cuts_are_recorded(pool, tmp_path):
    long = pool.corpus.copy()
    long.loc[3, "text"] = "Some words that go on. " * 20
    task = replace(TASK, budget=200)
    judge(replace(pool, corpus=long), tmp_path / "out", task=task)
    rows = select(tmp_path / "out", "SELECT DISTINCT doc_id, characters, kept FROM cuts")
    text = long.loc[3, "text"]
    assert rows == [(long.loc[3, "doc_id"], len(text), len(cut_text(text, 200)))]


def test_progress_is_told(pool, tmp_path, monkeypatch):
    monkeypatch.setattr("rcp_bayes.judge.run._TOLD_EVERY", 0.0)
    lines: list[str] = []
    done = judge(pool, tmp_path / "out", progress=lines.append)
    total = sum(done.windows.values())
    assert len(lines) == total
    assert lines[-1].startswith(f"judged {total} of {total} windows, 0 invalid;")


def test_tasks_by_name():
    assert Task.named(stage="a", preset="trec-dl", budget=None).stages == ("a",)
    assert not Task.named(preset="trec-dl").schedule.mirror
    for given in ({"stage": "c"}, {"preset": "x"}):
        with pytest.raises(UsageError, match="choose"):
            Task.named(**given)


def test_a_prompt_that_the_lexical_judge_cannot_read_is_wrong_usage(pool, tmp_path):
    prompts = replace(TASK.prompts, stage_a="Rate: {query} {documents}")
    with pytest.raises(UsageError, match="layout of the shipped prompts"):
        judge(pool, tmp_path / "out", task=replace(TASK, prompts=prompts))


@pytest.mark.parametrize("stage", ["a", "b"])
def test_an_unreadable_window_is_asked_three_times_and_kept_with_all_its_documents(
    pool, tmp_path, stage
):
    out = tmp_path / "out"
    done = judge(pool, out, Sloppy("q1-d7 ", stage))
    name, values = {"a": ("stage_a", ["score", "rank"]),
                    "b": ("stage_b", ["C1", "C2", "C3", "C4", "C5"])}[stage]  # fmt: skip
    rows = table(out, name)
    bad = rows[rows["invalid"].notna()]
    n = bad.groupby(["query_id", "window_id"]).ngroups
    assert n > 0 and set(bad["query_id"]) == {"q1"} and set(bad["invalid"]) == {"no_json"}
    assert len(bad) == 5 * n and bad[values].isna().all(axis=None)
    windows = bad.groupby("window_id")["doc_id"].apply(set)
    assert all("q1-d7" in shown for shown in windows)
    assert rows[rows["invalid"].isna()][values[0]].notna().all()
    told = Counter()
    for phases in done.exported.invalid[stage].values():
        told.update(phases)
    assert told == {"no_json": n}
    attempts = select(
        out, "SELECT w.outcome, count(*) FROM attempts a JOIN windows w ON w.id = a.window"
        " GROUP BY w.id",
    )  # fmt: skip
    assert Counter(attempts) == {("invalid", 3): n, ("valid", 1): sum(done.windows.values()) - n}
    raw = select(out, "SELECT DISTINCT content, category FROM attempts WHERE category NOT NULL")
    assert raw == [("None of these passages relates to the query.", "no_json")]
    counts = observe(read_judgments(out)).counts[name]
    assert counts["invalid_windows"] == n
    assert sum(c["no_json"] for c in counts["invalid_by_phase"].values()) == n


def test_a_judge_that_never_answers_well_still_ends(pool, tmp_path):
    """No valid answer to plan from: the schedule goes on, and all is counted as invalid."""

    class Mute(LexicalJudge):
        def reply(self, messages):
            return ""

    done = judge(pool, tmp_path / "out", Mute())
    assert done.calls == 3 * sum(done.windows.values())
    assert set(table(tmp_path / "out", "stage_a")["invalid"]) == {"empty"}
    with pytest.raises(InputError, match=r"none of the .* windows"):
        observe(read_judgments(tmp_path / "out"))


def test_rankings_without_scores_enter_as_ranks(pool, tmp_path):
    class Ranking(LexicalJudge):
        def reply(self, messages):
            labels = list(Asked(messages).documents)
            if Asked(messages).criteria:
                return super().reply(messages)
            return json.dumps({"ranking": labels[::-1]})

    judge(pool, tmp_path / "out", Ranking())
    rows = table(tmp_path / "out", "stage_a")
    assert rows["score"].isna().all() and (rows["rank"] == 5 - rows["position"]).all()


def test_prompts_and_answers_of_the_shipped_files_fit_together():
    """Every mark of the prompts is filled, and the schema names what the decoder wants."""
    prompts = load_prompts()
    assert "{form}" in prompts.stage_a and "{form}" in prompts.stage_b
    window = PlannedWindow("a", "random", 0, 0, ("x", "y"))
    answer, category = reading.read_answer(
        window, '{"scores": {"D1": 1, "D2": -1}}', None, "stop", ()
    )
    assert answer.scores == (1.0, -1.0) and category is None
