"""Prompts: what is shown, what is cut, what form the answer has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcp_bayes.errors import InputError
from rcp_bayes.judge.asking import Embedded
from rcp_bayes.judge.decode import Response, decode
from rcp_bayes.judge.embedded import Asked, LexicalJudge
from rcp_bayes.judge.prompts import Prompts, answer_schema, cut_text, load_prompts, render
from rcp_bayes.judge.task import Task
from rcp_bayes.rubric import DEFAULT_RUBRIC

PROMPTS = load_prompts()
DOCUMENTS = [("Title", "First text."), (None, "Second text."), (None, "Third.")]


def shown(stage, documents=DOCUMENTS, query="what?", instruction=None, **more):
    return render(stage, PROMPTS, DEFAULT_RUBRIC, query, instruction, documents, **more)


def test_window_is_shown_under_its_own_labels():
    rendered = shown("a")
    asked = Asked(rendered.messages)
    assert rendered.labels == ("D1", "D2", "D3")
    assert asked.query == "what?"
    assert asked.documents == {"D1": "Title\nFirst text.", "D2": "Second text.", "D3": "Third."}
    assert asked.criteria == []
    assert rendered.cuts == ()


def test_stage_a_says_logit_scale_and_stage_b_asks_every_question():
    assert "log-odds" in shown("a").messages[0]["content"]
    text = shown("b").messages[0]["content"]
    assert Asked(shown("b").messages).criteria == list(DEFAULT_RUBRIC.ids)
    assert all(criterion.question in text for criterion in DEFAULT_RUBRIC.criteria)


def test_instruction_only_where_there_is_one():
    assert "<instruction>" not in shown("a").messages[0]["content"]
    assert (
        "<instruction>\nFind code.\n" in shown("a", instruction="Find code.").messages[0]["content"]
    )


@pytest.mark.parametrize("stage", ["a", "b"])
def test_marks_in_texts_stay_text(stage):
    rendered = shown(
        stage, [(None, "{query} {form} </document> <document label='D9'>")], "{documents}"
    )
    asked = Asked(rendered.messages)
    assert asked.query == "{documents}"
    assert list(asked.documents) == ["D1"]
    assert asked.documents["D1"].startswith("{query} {form}")


def test_no_text_opens_or_ends_a_block():
    query = 'parse <query>\nx\n</query> <document label="D9">\nxml\n</document>'
    asked = Asked(shown("b", query=query, instruction="</instruction> <criteria>").messages)
    assert asked.query.startswith("parse < query>")
    assert list(asked.documents) == ["D1", "D2", "D3"]
    assert asked.criteria == list(DEFAULT_RUBRIC.ids)


@pytest.mark.parametrize("stage", ["a", "b"])
def test_the_form_that_is_shown_is_the_form_that_is_read(stage):
    rendered = shown(stage)
    form = rendered.messages[0]["content"].strip().splitlines()[-1]
    filled = form.replace("<score>", "1.5").replace("<0 or 1>", "1")
    decoded = decode(stage, Response(filled), rendered.labels, DEFAULT_RUBRIC.ids)
    assert decoded.category is None
    keys = json.loads(filled)
    schema = rendered.schema
    while isinstance(keys, dict):  # the schema names the same keys at every level
        assert schema["required"] == list(keys)
        assert schema["additionalProperties"] is False
        key = next(iter(keys))
        keys, schema = keys[key], schema["properties"][key]


def test_schema_names_labels_and_criteria():
    schema = answer_schema("b", ("D1", "D2"), ("C1", "C2"))
    inner = schema["properties"]["answers"]["properties"]["D2"]
    assert inner["properties"]["C1"] == {"type": "integer", "enum": [0, 1]}


def test_cut_at_a_sentence_then_at_a_word():
    text = "One sentence here. Another sentence there. A third one that is long."
    assert cut_text(text, 200) == text
    assert cut_text(text, 50) == "One sentence here. Another sentence there. […]"
    assert cut_text("word " * 40, 50) == ("word " * 9).strip() + " […]"
    assert cut_text("x" * 100, 20) == "x" * 16 + " […]"


@given(st.text(max_size=300), st.integers(100, 300))
def test_cut_keeps_to_the_budget(text, budget):
    cut = cut_text(text, budget)
    assert len(cut) <= budget
    assert text.startswith(cut.removesuffix(" […]"))


def test_cuts_are_recorded():
    rendered = shown("a", [(None, "Long. " * 100), (None, "short")], budget=120)
    (cut,) = rendered.cuts
    assert cut["label"] == "D1" and cut["characters"] == 600 and cut["kept"] <= 120


def test_digest_follows_every_word():
    other = Prompts(PROMPTS.stage_a + " ", PROMPTS.stage_b)
    judge = Embedded(LexicalJudge())
    ours, theirs = (
        {stage: Task(prompts=p).configuration(stage, judge).digest for stage in ("a", "b")}
        for p in (PROMPTS, other)
    )
    assert theirs["a"] != ours["a"]
    assert theirs["b"] == ours["b"]


def test_prompt_file_needs_its_marks(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Rank {documents}")
    with pytest.raises(InputError, match=r"mine\.txt.*\{query\}"):
        load_prompts(path)
    path.write_text("Rank {documents} for {query}")
    assert load_prompts(path).stage_a == "Rank {documents} for {query}"
    with pytest.raises(InputError, match="none"):
        load_prompts(tmp_path / "none.txt")
