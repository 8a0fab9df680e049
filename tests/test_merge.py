"""Shards and copies of a judged pool join into one folder, or are refused as a whole."""

import sqlite3
from dataclasses import replace

import pytest
from judging import TABLES, TASK, judge, same_tables, select, write_pool

from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.io import PoolFolder
from rcp_bayes.judge.merge import merge
from rcp_bayes.judge.store import STORE_NAME


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> PoolFolder:
    return write_pool(tmp_path_factory.mktemp("pool"), queries=5)


@pytest.fixture(scope="module")
def whole(pool, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    judge(pool, out)
    return out


def test_shards_merge_to_the_whole(pool, whole, tmp_path):
    parts = [tmp_path / str(i) for i in (1, 2, 3)]
    sizes = [
        judge(pool, part, task=replace(TASK, shard=(i, 3))).windows["a"]
        for i, part in enumerate(parts, 1)
    ]
    assert sum(sizes) == 5 * 18 and max(sizes) < 5 * 18
    out = tmp_path / "all"
    for folders in (parts, parts[::-1], [out, *parts]):  # again into the same: nothing changes
        assert merge(folders, out).windows == {"a": 90, "b": 30}
        assert same_tables(whole, out)
    assert select(out, "SELECT count(*) FROM attempts") == [(120,)]
    assert select(out, "SELECT count(*) FROM sessions") == [(3,)]
    assert judge(pool, out).calls == 0
    merge([parts[2], parts[0], parts[1]], tmp_path / "other")
    assert same_tables(whole, tmp_path / "other")


def test_a_merged_folder_goes_on(pool, whole, tmp_path):
    """Two shards of three: the rest is asked into the joined folder."""
    for i in (1, 2):
        judge(pool, tmp_path / str(i), task=replace(TASK, shard=(i, 3)))
    merge([tmp_path / "1", tmp_path / "2"], tmp_path / "out")
    done = judge(pool, tmp_path / "out")
    assert done.resumed + done.calls == 120 and same_tables(whole, tmp_path / "out")


def test_everything_of_an_attempt_is_carried_over(pool, whole, tmp_path):
    merge([whole], tmp_path)
    for name in ("texts", "configurations", "queries", "sessions", "windows", "attempts", "cuts"):
        rows = f"SELECT * FROM {name} ORDER BY 1"
        assert select(tmp_path, rows) == select(whole, rows)


def test_a_folder_that_went_further_completes_the_other(whole, tmp_path):
    poor = tmp_path / "poor"
    poor.mkdir()
    (poor / STORE_NAME).write_bytes((whole / STORE_NAME).read_bytes())
    db = sqlite3.connect(poor / STORE_NAME)
    with db:
        db.execute("DELETE FROM attempts WHERE window % 3 = 0")
        db.execute("UPDATE windows SET outcome = NULL, answer = NULL WHERE id % 3 = 0")
    db.close()
    out = tmp_path / "out"
    assert merge([poor], out).unanswered == 40
    for folder in (whole, poor):  # the poorer one takes nothing away
        assert merge([folder], out).unanswered == 0
        assert same_tables(whole, out)


def test_other_answers_to_the_same_windows_are_refused(pool, whole, tmp_path):
    judge(pool, tmp_path / "again")  # the same windows, asked a second time
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"again: window 0 \(random\) of query 'q0' was answered"):
        merge([whole, tmp_path / "again"], out)
    assert select(out, "SELECT count(*) FROM windows") == [(0,)]
    assert not any((out / f"{name}.parquet").exists() for name in TABLES)


def test_other_plans_and_texts_are_refused(pool, whole, tmp_path):
    """Adaptive windows follow answers: another rating plans other windows at the same place."""
    texts = pool.corpus.copy()
    texts["text"] += " more"
    judge(replace(pool, corpus=texts), tmp_path / "texts")
    with pytest.raises(InputError, match=r"texts: query 'q0' has other candidates or texts"):
        merge([whole, tmp_path / "texts"], tmp_path / "out")
    changed = tmp_path / "plan"
    changed.mkdir()
    (changed / STORE_NAME).write_bytes((whole / STORE_NAME).read_bytes())
    db = sqlite3.connect(changed / STORE_NAME)
    with db:
        db.execute("UPDATE windows SET key = 'x' || key WHERE phase = 'adaptive'")
    db.close()
    with pytest.raises(InputError, match=r"\(adaptive\) of query 'q0' was planned otherwise"):
        merge([whole, changed], tmp_path / "out")


def test_folders_without_a_store(whole, tmp_path):
    with pytest.raises(InputError, match=r"no judge\.sqlite"):
        merge([whole, tmp_path / "nothing"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "died").mkdir()
    (tmp_path / "died" / STORE_NAME).touch()  # killed as it began
    with pytest.raises(InputError, match="holds nothing yet"):
        merge([whole, tmp_path / "died"], tmp_path / "new")
    with pytest.raises(UsageError, match="at least one"):
        merge([], tmp_path / "new")
