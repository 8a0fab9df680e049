"""Files: every format and its gzipped copy, hostile files, runs, qrels, pools, writers."""

import gzip
import json
import string
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcp_bayes.errors import InputError
from rcp_bayes.io import (
    atomic_file,
    read_corpus,
    read_judgments,
    read_pool,
    read_pool_order,
    read_qrels,
    read_runs,
    write_qrels,
    write_runs,
    write_table,
)
from rcp_bayes.records import Judgments
from rcp_bayes.tables import require_overlap

A = pd.DataFrame(
    {
        "query_id": ["q1", "q1", "q2", "q2"],
        "window_id": ["w1", "w1", "w1", "w1"],
        "doc_id": ["0071", "71", "NA", "d#1"],
        "score": [1.5, -1.0, 0.5, np.nan],
        "rank": [1, 2, 1, 2],
        "phase": ["random", "random", "adaptive", "adaptive"],
        "judge": ["m", "m", "m", "m"],
        "position": [0, 1, 0, 1],
        "invalid": pd.Series([None, None, "truncated", "truncated"], dtype="str"),
    }
)
B = pd.DataFrame(
    {
        "query_id": ["q1", "q1", "q2"],
        "window_id": ["v1", "v1", "v1"],
        "doc_id": ["0071", "71", "NA"],
        "C1": [1, 1, 0],
        "C2": [1, 0, 0],
    }
)
FORMATS = ["parquet", "csv", "tsv", "jsonl"]


def put(frame: pd.DataFrame, path: Path) -> Path:
    """Write a frame by another library's hand: pandas."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix == ".parquet":
        frame.to_parquet(plain, index=False)
    elif plain.suffix == ".jsonl":
        frame.to_json(plain, orient="records", lines=True, force_ascii=False)
    else:
        frame.to_csv(plain, index=False, sep="\t" if plain.suffix == ".tsv" else ",")
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def refusal(read, *arguments, **named) -> str:
    with pytest.raises(InputError) as caught:
        read(*arguments, **named)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text


# ------------------------------------------------------------------------------- judgments folders


@pytest.mark.parametrize("suffix", [*FORMATS, *(f"{f}.gz" for f in FORMATS)])
def test_every_format_reads_the_same(tmp_path, suffix):
    put(A, tmp_path / f"stage_a.{suffix}")
    put(B, tmp_path / f"stage_b.{suffix}")
    read, held = read_judgments(tmp_path), Judgments.from_frames(A, B)
    assert read.stage_a.to_pylist() == held.stage_a.to_pylist()
    assert read.stage_b.to_pylist() == held.stage_b.to_pylist()
    assert read.criteria == ("C1", "C2")
    assert read.stage_a["doc_id"].to_pylist() == ["0071", "71", "NA", "d#1"]
    assert read.stage_a["score"].to_pylist() == [1.5, -1.0, 0.5, None]
    assert read.stage_a["invalid"].to_pylist() == [None, None, "truncated", "truncated"]
    assert [s.table for s in read.sources] == ["stage_a", "stage_b"]
    assert read.source == str(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_endings_byte_order_mark_and_quotes(tmp_path, end):
    rows = ["query_id,window_id,doc_id,score,text", 'q1,w1,"a,b",1,"two',
            'lines"', 'q1,w1,"say ""hi""",2.5,x', ""]  # fmt: skip
    (tmp_path / "stage_a.csv").write_bytes(b"\xef\xbb\xbf" + end.join(rows).encode())
    a = read_judgments(tmp_path).stage_a
    assert a["doc_id"].to_pylist() == ["a,b", 'say "hi"']
    assert a["score"].to_pylist() == [1.0, 2.5]


def test_whole_number_ids_in_one_file_join_text_in_another(tmp_path):
    put(A.assign(doc_id=[42, 7, 42, 8]), tmp_path / "stage_a.parquet")
    put(B.assign(doc_id=["42", "042", "42"]), tmp_path / "stage_b.csv")
    judgments = read_judgments(tmp_path)
    assert judgments.stage_a["doc_id"].to_pylist() == ["42", "7", "42", "8"]
    assert judgments.stage_b["doc_id"].to_pylist() == ["42", "042", "42"]


def test_jsonl_mixes_numbers_and_text(tmp_path):
    lines = [
        {"query_id": 1, "window_id": "w", "doc_id": 42, "score": 1},
        {"query_id": "1", "window_id": "w", "doc_id": "042", "score": "2.5", "more": [1, {}]},
        {"query_id": 1, "window_id": "w", "doc_id": "2024-01-01", "score": None},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    (tmp_path / "stage_a.jsonl").write_text(text + "\n \n")
    a = read_judgments(tmp_path).stage_a
    assert a["query_id"].to_pylist() == ["1", "1", "1"]
    assert a["doc_id"].to_pylist() == ["42", "042", "2024-01-01"]
    assert a["score"].to_pylist() == [1.0, 2.5, None]


def test_jsonl_column_that_starts_late(tmp_path, monkeypatch):
    monkeypatch.setattr("rcp_bayes.files._JSON_CHUNK", 2)
    lines = [{"query_id": "q", "window_id": "w", "doc_id": str(i), "score": i} for i in range(5)]
    lines[4]["phase"] = "adaptive"
    (tmp_path / "stage_a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    a = read_judgments(tmp_path).stage_a
    assert a["doc_id"].to_pylist() == list("01234")
    assert a["phase"].to_pylist() == [None] * 4 + ["adaptive"]


def test_one_stage_alone(tmp_path):
    put(A, tmp_path / "stage_a.parquet")
    judgments = read_judgments(tmp_path)
    assert judgments.stage_b is None and judgments.criteria == ()


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path):
    for part, row in {"stage_a.parquet": 0, "stage_a-2.csv": 1, "stage_a-10.jsonl.gz": 2}.items():
        put(A.iloc[[row]], tmp_path / part)
    put(A.head(0), tmp_path / "stage_a-3.parquet")  # no rows: reads as if it were not there
    (tmp_path / "stage_a-4.csv").write_bytes(b"")
    (tmp_path / ".stage_a.parquet.k3n").write_bytes(b"left by a killed writer")
    (tmp_path / "stage_answers.csv").write_text("not ours")
    judgments = read_judgments(tmp_path)
    assert judgments.stage_a["doc_id"].to_pylist() == ["0071", "71", "NA"]
    assert judgments.counts["stage_a"] == {"rows": 3, "folded": 0}
    assert len(judgments.sources) == 5


@pytest.mark.parametrize("suffix", [*FORMATS, "csv.gz"])
def test_no_rows_alone(tmp_path, suffix):
    put(A.head(0), tmp_path / f"stage_a.{suffix}")
    text = refusal(read_judgments, tmp_path)
    assert text.startswith(str(tmp_path / f"stage_a.{suffix}")) and "no rows" in text


def test_rows_repeated_over_parts(tmp_path):
    put(A, tmp_path / "stage_a.parquet")
    put(A.iloc[[1]], tmp_path / "stage_a-2.csv")
    assert read_judgments(tmp_path).counts["stage_a"] == {"rows": 5, "folded": 1}
    put(A.iloc[[0, 1]].assign(score=[1.5, 4.0]), tmp_path / "stage_a-2.csv")
    text = refusal(read_judgments, tmp_path)
    assert "stage_a-2.csv: row 2: query_id 'q1', window_id 'w1', doc_id '71'" in text
    assert "first score -1.0 (row 2 of" in text and "stage_a.parquet), then score 4.0" in text


def test_parts_with_other_criteria_are_refused_unless_named(tmp_path):
    put(B, tmp_path / "stage_b.parquet")
    put(B.assign(window_id="v9", C3=1), tmp_path / "stage_b-2.parquet")
    assert "different criteria (C3)" in refusal(read_judgments, tmp_path)
    assert read_judgments(tmp_path, criteria=["C2"]).stage_b.num_rows == 6


def test_only_the_named_criteria_are_read(tmp_path):
    put(B.assign(reason="because"), tmp_path / "stage_b.csv")
    assert "column reason: 'because' is not a number" in refusal(read_judgments, tmp_path)
    assert read_judgments(tmp_path, criteria=["C2"]).stage_b.column_names[-1] == "C2"
    text = refusal(read_judgments, tmp_path, criteria=["C7"])
    assert "criterion 'C7' is not there" in text and "C1" in text


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_refusal_names_file_row_and_column(tmp_path, suffix):
    put(A.assign(score=[1.0, 2.0, 7.0, 0.0]), tmp_path / f"stage_a.{suffix}")
    text = refusal(read_judgments, tmp_path)
    place = "line" if suffix == "jsonl" else "row"
    expected = f"stage_a.{suffix}: {place} 3, column score: value 7 is outside [-5, 5]"
    assert expected in text


def test_a_missing_column_lists_all_that_the_file_has(tmp_path):
    put(A.drop(columns="doc_id").assign(document=1), tmp_path / "stage_a.csv")
    text = refusal(read_judgments, tmp_path)
    assert "column 'doc_id' is missing" in text and "'document'" in text


def test_files_without_any_known_column(tmp_path):
    for suffix in FORMATS:
        path = put(pd.DataFrame({"x": [1], "y": [2]}), tmp_path / f"stage_a.{suffix}")
        text = refusal(read_judgments, tmp_path)
        assert "column 'query_id' is missing; there are 'x', 'y'" in text
        path.unlink()


# ------------------------------------------------------------------------------------ hostile files


def hostile(kind: str, folder: Path) -> tuple[Path, str]:
    """A damaged stage_a and what its refusal says."""
    whole = put(A, folder / "stage_a.parquet")
    data = whole.read_bytes()
    if kind == "truncated parquet":
        whole.write_bytes(data[:-40])
        return whole, "not a whole Parquet file"
    if kind == "empty parquet":
        whole.write_bytes(b"")
        return whole, "not a whole Parquet file"
    if kind == "text called parquet":
        whole.write_text("query_id,doc_id\nq,d\n")
        return whole, "not a whole Parquet file"
    if kind == "damaged parquet page":
        broken = bytearray(data)
        broken[4:200] = b"\xff" * 196
        whole.write_bytes(bytes(broken))
        return whole, "not a whole Parquet file"
    whole.unlink()
    name, content, told = {
        "folder": ("stage_a.parquet", None, "is a folder, not a file"),
        "not gzip": ("stage_a.csv.gz", b"query_id,window_id\n", "is not a whole gzip file"),
        "cut gzip": ("stage_a.csv.gz", gzip.compress(b"query_id\n" * 99)[:-12], "not a whole gzip"),
        "latin-1 csv": (
            "stage_a.csv",
            "query_id,window_id,doc_id,score\nq,w,d,1\nq,w,caf\xe9,1\n".encode("latin-1"),
            "line 3: byte 0xe9 is not UTF-8",
        ),
        "latin-1 jsonl": (
            "stage_a.jsonl",
            '{"query_id":"q"}\n{"query_id":"\xe9"}\n'.encode("latin-1"),
            "line 2: byte 0xe9 is not UTF-8",
        ),
        "ragged csv": (
            "stage_a.csv",
            b"query_id,window_id,doc_id,score\nq,w,d,1\nq,w,e,1,9\n",
            "row 2: Expected 4 columns, got 5",
        ),
        "open quote": (
            "stage_a.csv",
            b'query_id,window_id,doc_id,score\nq,w,"d,1\nq,w,e,1\n',
            "row 1: Expected 4 columns",
        ),
        "cut jsonl": (
            "stage_a.jsonl",
            b'{"query_id":"q","window_id":"w","doc_id":"d","score":1}\n{"query_id":"q","wi',
            "line 2: is not a JSON object",
        ),
        "jsonl list": ("stage_a.jsonl", b"[1, 2]\n", "line 1: is not a JSON object"),
        "two objects on a line": ("stage_a.jsonl", b'{"a":1},{"b":2}\n', "is not a JSON object"),
        "key twice": (
            "stage_a.jsonl",
            b'{"query_id":"q"}\n{"doc_id":"a","doc_id":"b"}\n',
            "line 2: is not a JSON object (key 'doc_id' stands twice)",
        ),
        "deep jsonl": (
            "stage_a.jsonl",
            b'{"a":' * 100_000 + b"}\n",
            "line 1: is not a JSON object",
        ),
        "nan score in jsonl": (
            "stage_a.jsonl",
            b'{"query_id":"q","window_id":"w","doc_id":"d","score":-Infinity}\n',
            "line 1, column score: value -inf is infinite",
        ),
        "header twice": (
            "stage_a.csv",
            b"query_id,window_id,doc_id,score,score\nq,w,d,1,2\n",
            "column score: the column stands twice",
        ),
        "blank": ("stage_a.csv", b"\n\n", "no rows"),
    }[kind]
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(content)
    return folder / name, told


@pytest.mark.parametrize(
    "kind",
    [
        "truncated parquet", "empty parquet", "text called parquet", "damaged parquet page",
        "folder", "not gzip", "cut gzip", "latin-1 csv", "latin-1 jsonl", "ragged csv",
        "open quote", "cut jsonl", "jsonl list", "two objects on a line", "key twice",
        "deep jsonl", "nan score in jsonl", "header twice", "blank",
    ],
)  # fmt: skip
def test_hostile_files_get_one_clear_line(tmp_path, kind):
    path, told = hostile(kind, tmp_path)
    text = refusal(read_judgments, tmp_path)
    assert text.startswith(f"{path}: ") and told in text


def test_places_that_are_no_judgments_folder(tmp_path):
    assert "no such folder" in refusal(read_judgments, tmp_path / "nowhere")
    file = put(A, tmp_path / "a.csv")
    assert "is a file, not a folder" in refusal(read_judgments, file)
    assert "neither stage_a.* nor stage_b.*" in refusal(read_judgments, tmp_path)
    assert "no such file" in refusal(read_runs, tmp_path / "none.txt")
    assert "is a folder" in refusal(read_runs, tmp_path)


@pytest.mark.parametrize("name", ["x" * 300 + ".txt", "nul\0inside.txt"])
def test_files_that_cannot_be_opened(tmp_path, name):
    assert "cannot be read" in refusal(read_runs, tmp_path / name)


@given(st.binary(max_size=200), st.sampled_from(["csv", "jsonl", "parquet", "csv.gz", "tsv"]))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_raise_anything_but_a_refusal(tmp_path, data, suffix):
    """Arbitrary bytes, and a sound file with bytes inserted: refused or read, never a traceback."""
    good = b"query_id,window_id,doc_id,score\nq,w,d,1\n"
    if suffix == "jsonl":
        good = b'{"query_id":"q","window_id":"w","doc_id":"d","score":1}\n'
    named = True
    for content in (data, good[: len(good) // 2] + data + good[len(good) // 2 :], good + data):
        path = tmp_path / f"stage_a.{suffix}"
        path.write_bytes(content)
        try:
            read_judgments(tmp_path)
        except InputError as error:
            named = named and str(path) in str(error)
        path.unlink()
    assert named


ids = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12
)


@given(st.lists(ids, min_size=1, max_size=8, unique=True), st.sampled_from(FORMATS))
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_survive_every_format(tmp_path, documents, suffix):
    """Any text is an id, verbatim, in every format (a lone CR is where CSV writers differ)."""
    if suffix in ("csv", "tsv"):
        documents = [d.replace("\r", "?") + str(i) for i, d in enumerate(documents)]
    frame = pd.DataFrame({"query_id": documents, "window_id": "w", "doc_id": documents, "score": 1})
    path = put(frame, tmp_path / f"stage_a.{suffix}")
    a = read_judgments(tmp_path).stage_a
    path.unlink()
    assert a["query_id"].to_pylist() == documents == a["doc_id"].to_pylist()


# ---------------------------------------------------------------------------------- runs and qrels

RUN = "q1 Q0 d1 1 3.5 bm25\nq1 Q0 d2 2 3.5 bm25\nq2 Q0 0042 1 -1e-3 bm25\n"


def text_file(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_trec_run(tmp_path):
    runs = read_runs(text_file(tmp_path / "run.txt", RUN))
    assert runs.columns.tolist() == ["dataset", "query_id", "doc_id", "score", "system"]
    assert runs.values.tolist() == [
        ["default", "q1", "d1", 3.5, "bm25"],
        ["default", "q1", "d2", 3.5, "bm25"],
        ["default", "q2", "0042", -0.001, "bm25"],
    ]
    assert runs.index.tolist() == [0, 1, 2]
    assert runs.attrs["counts"] == {"rows": 3, "folded": 0}


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace("\n", "\r\n"),
        RUN.replace(" ", "\t"),
        RUN.replace(" ", " \t  "),
        "\n" + RUN.replace("\n", "\n\n  \n"),
        "  " + RUN.rstrip("\n"),
        "\ufeff" + RUN,
    ],
)
def test_blanks_tabs_and_line_endings_make_no_difference(tmp_path, text):
    expected = read_runs(text_file(tmp_path / "run.txt", RUN))
    for name in ("same.trec", "same.run.gz"):
        path = text_file(tmp_path / name, text)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        pd.testing.assert_frame_equal(read_runs(path), expected)


@pytest.mark.parametrize("odd", ["d#1", '"d1', "d'1", "d,1", "d\u00a01", "d\u20281", "\U0001f600"])
def test_odd_characters_inside_an_id(tmp_path, odd):
    runs = read_runs(text_file(tmp_path / "run", f"q1 Q0 {odd} 1 2 t\nq1 Q0 e 2 1 t\n"))
    assert runs["doc_id"].tolist() == [odd, "e"]


def test_a_five_field_line_is_refused_with_its_number(tmp_path):
    text = "\n" + RUN + "q2 Q0 d7 2 0.5\n"
    assert "run.txt: line 5: 5 fields where TREC runs have 6" in refusal(
        read_runs, text_file(tmp_path / "run.txt", text)
    )
    assert "line 1: 3 fields" in refusal(read_runs, text_file(tmp_path / "run.txt", "q d 1\n"))


@pytest.mark.parametrize(("score", "told"), [("nan", "missing or NaN"), ("inf", "infinite"),
    ("-Infinity", "infinite"), ("1e999", "infinite"), ("1,5", "not a number"),
    ("abc", "not a number")])  # fmt: skip
def test_run_scores_that_are_no_numbers_are_refused_with_their_line(tmp_path, score, told):
    path = text_file(tmp_path / "run.txt", f"q Q0 a 1 2 t\n\nq Q0 b 2 {score} t\n")
    text = refusal(read_runs, path)
    assert "run.txt: line 3, column score: " in text and told in text


def test_parquet_run_scores(tmp_path):
    frame = pd.DataFrame({"query_id": ["q", "q"], "doc_id": ["a", "b"], "score": [1.0, np.nan]})
    assert "row 2, column score" in refusal(read_runs, put(frame, tmp_path / "r.parquet"))


@pytest.mark.parametrize("same", [True, False])
def test_a_document_twice_for_one_query_is_refused(tmp_path, same):
    again = "q1 Q0 d1 1 3.5 bm25\n" if same else "q1 Q0 d1 3 1.0 bm25\n"
    text = refusal(read_runs, text_file(tmp_path / "run.txt", RUN + again))
    assert "line 4" in text and "query_id 'q1'" in text and "doc_id 'd1'" in text
    assert "stands twice" in text and "line 1" in text


def test_the_system_is_the_tag_or_else_the_file_name(tmp_path):
    frame = pd.DataFrame({"query_id": [1], "doc_id": [42], "score": [1], "rank": [1]})
    paths = [
        put(frame, tmp_path / "bm25.v2.parquet.gz"),
        put(frame.assign(system="named"), tmp_path / "x.parquet"),
        text_file(tmp_path / "input.first", "1 Q0 042 1 2 tag-one\n1 Q0 042 1 2 tag-two\n"),
    ]
    runs = read_runs(paths)
    assert runs["system"].tolist() == ["bm25.v2", "named", "tag-one", "tag-two"]
    assert runs["doc_id"].tolist() == ["42", "42", "042", "042"]
    assert runs["query_id"].tolist() == ["1"] * 4


def test_two_files_with_one_tag_and_the_same_document_name_both(tmp_path):
    a, b = (text_file(tmp_path / name, RUN) for name in ("a.txt", "b.txt"))
    text = refusal(read_runs, [a, b])
    assert "b.txt: line 1: system 'bm25'" in text and "a.txt" in text


def test_dataset_argument_fills_in(tmp_path):
    path = text_file(tmp_path / "run.txt", RUN)
    assert set(read_runs(path, dataset="nq")["dataset"]) == {"nq"}
    frame = pd.DataFrame({"dataset": ["x"], "query_id": ["q"], "doc_id": ["d"], "score": [1.0]})
    named = put(frame, tmp_path / "r.csv")
    assert read_runs(named, dataset="nq")["dataset"].tolist() == ["x"]


def test_empty_runs(tmp_path):
    for name, data in (("r.txt", b""), ("r.csv", b""), ("r.jsonl", b"\n"), ("r.txt.gz", None)):
        path = tmp_path / name
        path.write_bytes(gzip.compress(b"") if data is None else data)
        assert "no rows" in refusal(read_runs, path)
    assert "no run file" in refusal(read_runs, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.txt", "007 0 0042 1\n007 0 42 -2\n"),
        ("q.tsv", "007\t0\t0042\t1\r\n007\t0\t42\t-2\r\n"),
        ("q.tsv", "query-id\tcorpus-id\tscore\n007\t0042\t1\n007\t42\t-2\n"),
        ("beir.txt", "query-id\tcorpus-id\tscore\r\n007\t0042\t1\r\n007\t42\t-2\r\n"),
        ("q.csv", "query_id,doc_id,grade\n007,0042,1\n007,42,-2\n"),
        ("q.jsonl", '{"query_id":"007","doc_id":"0042","grade":1}\n'
                    '{"query_id":"007","doc_id":42,"grade":-2}\n'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("gz", [False, True])
def test_qrels_in_every_format(tmp_path, name, text, gz):
    path = text_file(tmp_path / name, text)
    if gz:
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
    qrels = read_qrels(path)
    assert qrels.values.tolist() == [
        ["default", "007", "0042", 1.0],
        ["default", "007", "42", -2.0],
    ]
    assert qrels["grade"].dtype == np.float64


def test_qrels_from_parquet_with_number_ids(tmp_path):
    frame = pd.DataFrame({"query_id": [7], "doc_id": ["0042"], "grade": np.array([3], np.int8)})
    qrels = read_qrels(put(frame, tmp_path / "q.parquet"))
    assert qrels.values.tolist() == [["default", "7", "0042", 3.0]]


def test_qrels_fold_identical_pairs_and_refuse_others(tmp_path):
    qrels = read_qrels(text_file(tmp_path / "q.txt", "q1 0 a 1\nq1 0 a 1\nq1 0 b 0\n"))
    assert qrels["grade"].tolist() == [1.0, 0.0]
    assert qrels.attrs["counts"] == {"rows": 3, "folded": 1}
    text = refusal(read_qrels, text_file(tmp_path / "q.txt", "q1 0 a 1\nq1 0 b 0\nq1 0 a 2\n"))
    assert "line 3: query_id 'q1', doc_id 'a' stands twice" in text
    assert "first grade 1.0 (line 1), then grade 2.0" in text


def test_qrels_without_grades(tmp_path):
    assert "'x' is not a number" in refusal(read_qrels, text_file(tmp_path / "q.txt", "q1 0 a x\n"))
    assert "line 1: 5 fields where TREC qrels have 4" in refusal(
        read_qrels, text_file(tmp_path / "q.txt", "q1 0 a 1 2\n")
    )


def test_runs_and_qrels_that_share_no_query(tmp_path):
    runs = read_runs(text_file(tmp_path / "r.txt", "q1 Q0 d 1 1 t\n"))
    qrels = read_qrels(text_file(tmp_path / "q.txt", "q1.0 0 d 1\n"))
    text = refusal(require_overlap, runs, qrels, "runs", "qrels")
    assert text.startswith("runs and qrels share no query (runs has 'q1', qrels has 'q1.0')")


token = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=8
).filter(lambda t: not any(c in string.whitespace for c in t) and not t.startswith("\ufeff"))


@given(
    st.lists(st.tuples(token, token, st.floats(-1e6, 1e6)), min_size=1, max_size=10,
             unique_by=lambda r: r[:2]),
)  # fmt: skip
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_and_qrels_round_trip_through_trec(tmp_path, rows):
    frame = pd.DataFrame(rows, columns=["query_id", "doc_id", "score"]).assign(system="s")
    write_runs(frame, tmp_path / "run.txt")
    back = read_runs(tmp_path / "run.txt")
    assert back[["query_id", "doc_id", "score", "system"]].values.tolist() == frame.values.tolist()
    grades = frame[["query_id", "doc_id"]].assign(grade=range(len(frame)))
    write_qrels(grades, tmp_path / "q.txt")
    assert read_qrels(tmp_path / "q.txt").iloc[:, 1:].values.tolist() == grades.values.tolist()


def test_trec_cannot_hold_a_blank_in_an_id(tmp_path):
    frame = pd.DataFrame({"query_id": ["q", "q"], "doc_id": ["a", "b c"], "grade": [1, 1]})
    assert "row 2, column doc_id: id 'b c'" in refusal(write_qrels, frame, tmp_path / "q.txt")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- pools


def pool_folder(folder: Path) -> Path:
    text_file(folder / "queries.jsonl", '{"_id": 1, "text": "what", "instruction": "be brief"}\n'
                                        '{"_id": "2", "text": "why"}\n')  # fmt: skip
    text_file(
        folder / "corpus.jsonl",
        "".join(f'{{"_id": "d{i}", "title": "t", "text": "x{i}"}}\n' for i in range(4)),
    )
    text_file(folder / "candidates.csv", "query_id,doc_id\n2,d3\n2,d0\n1,d1\n1,d2\n")
    return folder


def test_pool(tmp_path):
    pool = read_pool(pool_folder(tmp_path))
    assert pool.queries.iloc[0].tolist() == ["default", "1", "what", "be brief"]
    assert pd.isna(pool.queries["instruction"][1])
    assert pool.corpus["text"].tolist() == ["x0", "x1", "x2", "x3"]
    assert pool.candidates["doc_id"].tolist() == ["d3", "d0", "d1", "d2"]
    assert pool.excluded is None and pool.qrels is None
    text_file(tmp_path / "excluded.txt", "2 d0\n")
    text_file(tmp_path / "qrels.tsv", "query-id\tcorpus-id\tscore\n2\td3\t1\n")
    pool = read_pool(tmp_path)
    assert pool.excluded.values.tolist() == [["default", "2", "d0"]]
    assert pool.qrels.values.tolist() == [["default", "2", "d3", 1.0]]


def test_candidates_as_a_trec_run_keep_the_order_of_the_file(tmp_path):
    pool_folder(tmp_path)
    (tmp_path / "candidates.csv").unlink()
    text_file(tmp_path / "candidates.trec", "2 Q0 d3 1 9 t\n2 Q0 d0 2 8 t\n")
    order = read_pool_order(tmp_path)
    assert order.values.tolist() == [["default", "2", "d3"], ["default", "2", "d0"]]
    pd.testing.assert_frame_equal(read_pool_order(tmp_path / "candidates.trec"), order)


def test_pool_refusals(tmp_path):
    assert "queries.* is missing" in refusal(read_pool, tmp_path)
    pool_folder(tmp_path)
    text_file(tmp_path / "candidates.csv", "query_id,doc_id\n1,d1\n1,d9\n")
    text = refusal(read_pool, tmp_path)
    assert "candidates.csv: row 2, column doc_id: doc_id 'd9' has no text" in text
    text_file(tmp_path / "candidates.csv", "query_id,doc_id\n3,d1\n")
    assert "query_id '3' has no text in queries.jsonl" in refusal(read_pool, tmp_path)
    text_file(tmp_path / "candidates.trec", "1 Q0 d1 1 9 t\n")
    assert "are both there" in refusal(read_pool, tmp_path)
    text_file(tmp_path / "queries.jsonl", '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n')
    (tmp_path / "candidates.trec").unlink()
    assert "query_id '1' stands twice" in refusal(read_pool, tmp_path)


def test_memory_grows_with_the_file_not_with_rows_times_the_longest_text(tmp_path):
    """49 short texts and one of 2 MB: about 2 MB, where a rectangular array takes 400 MB."""
    rows = [{"_id": str(i), "text": "short"} for i in range(49)] + [
        {"_id": "x", "text": "y" * 2**21}
    ]
    path = text_file(tmp_path / "corpus.jsonl", "\n".join(map(json.dumps, rows)))
    csv = pd.DataFrame({"doc_id": [r["_id"] for r in rows], "text": [r["text"] for r in rows]})
    for file in (path, put(csv, tmp_path / "c.csv"), put(csv, tmp_path / "c.parquet")):
        arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        corpus = read_corpus(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert corpus["text"].str.len().tolist() == [5] * 49 + [2**21]
        assert peak + pa.total_allocated_bytes() - arrow < 40e6
        del corpus


# ----------------------------------------------------------------------------------------- writers


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_written_tables_read_back(tmp_path, suffix):
    write_table(A, tmp_path / f"stage_a.{suffix}")
    assert read_judgments(tmp_path).stage_a.to_pylist() == (
        Judgments.from_frames(A, None).stage_a.to_pylist()
    )


def test_written_parquet_has_plain_text_columns(tmp_path):
    write_table(A, tmp_path / "a.parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert pa.types.is_large_string(schema.field("doc_id").type)


def test_a_canonical_table_can_be_written(tmp_path):
    a = Judgments.from_frames(A, None).stage_a
    for suffix in ("parquet", "csv", "jsonl"):
        write_table(a, tmp_path / f"stage_a.{suffix}")
        assert read_judgments(tmp_path).stage_a.to_pylist() == a.to_pylist()
        (tmp_path / f"stage_a.{suffix}").unlink()


def test_a_broken_write_leaves_the_old_file(tmp_path):
    path = text_file(tmp_path / "t.txt", "old")

    def interrupted() -> None:
        with atomic_file(path, "w") as file:
            file.write("half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path):
    file = text_file(tmp_path / "file", "x")
    assert "cannot be written" in refusal(write_table, A, file / "below.parquet")
    assert "unknown format" in refusal(write_table, A, tmp_path / "a.xlsx")
    folder = tmp_path / "taken.parquet"
    folder.mkdir()
    assert "cannot be written" in refusal(write_table, A, folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken.parquet"]


@pytest.mark.skipif(sys.platform == "win32", reason="file modes of POSIX")
def test_written_files_have_ordinary_rights(tmp_path):
    write_table(A, tmp_path / "a.parquet")
    plain = text_file(tmp_path / "plain", "x")
    assert (tmp_path / "a.parquet").stat().st_mode == plain.stat().st_mode


# ---------------------------------------------------------------------------------------- real data


def test_real_files(shared_data):
    for name, queries, rows_a, rows_b, systems in (
        ("dl19", 43, 2 * 27_463, 9_255, 3), ("dl21", 27, 2 * 24_991, 5_710, 63),
    ):  # fmt: skip
        judgments = read_judgments(shared_data / name / "judgments")
        assert judgments.counts == {
            "stage_a": {"rows": rows_a, "folded": 0},
            "stage_b": {"rows": rows_b, "folded": 0},
        }
        assert judgments.criteria == ("U1", "U2", "U3", "E3", "E5", "B4", "B4o", "BL")
        assert len(judgments.stage_b["query_id"].unique()) == queries
        runs = read_runs(shared_data / name / "runs.parquet")
        assert runs["system"].nunique() == systems
        qrels = read_qrels(shared_data / name / "qrels.txt")
        raw = pd.read_csv(shared_data / name / "qrels.txt", sep=r"\s+", header=None, dtype=str)
        assert qrels["doc_id"].tolist() == raw[2].tolist()
        assert qrels["grade"].tolist() == raw[3].astype(float).tolist()
