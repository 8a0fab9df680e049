"""Embedded judges: deterministic, monotone, and, where the truth is known, true to it."""

import numpy as np
import pytest

import rcp_bayes as rcp
from rcp_bayes.errors import InputError
from rcp_bayes.gain import pass_probability
from rcp_bayes.io import read_pool
from rcp_bayes.judge.decode import Response, decode
from rcp_bayes.judge.embedded import (
    LexicalJudge,
    SimulatedJudge,
    lexical_match,
    write_simulated_pool,
)
from rcp_bayes.judge.prompts import load_prompts, render
from rcp_bayes.rubric import DEFAULT_RUBRIC

PROMPTS = load_prompts()


def ask(judge, stage, query, texts):
    documents = [(None, text) for text in texts]
    rendered = render(stage, PROMPTS, DEFAULT_RUBRIC, query, None, documents)
    reply = judge.reply(rendered.messages)
    assert judge.reply(rendered.messages) == reply
    return decode(stage, Response(reply), rendered.labels, DEFAULT_RUBRIC.ids)


QUERY = "why does bread dough rise"
TEXTS = [
    "Bread dough rises because yeast makes gas.",
    "Yeast makes bread rise.",
    "Bread is sold in the market.",
    "The moon pulls the ocean.",
    "",
]


def test_lexical_scores_fall_with_the_match():
    scores = ask(LexicalJudge(), "a", QUERY, TEXTS).scores
    assert list(scores) == sorted(scores, reverse=True)
    assert scores[0] > scores[2] > scores[3] == scores[4] == -5


def test_lexical_criteria_are_monotone_and_ignore_the_company():
    passes = ask(LexicalJudge(), "b", QUERY, TEXTS).passes
    for row in passes:
        assert list(row) == sorted(row, reverse=True)
    alone = ask(LexicalJudge(), "b", QUERY, TEXTS[:1]).passes
    assert alone[0] == passes[0]


def test_match_is_a_share():
    assert lexical_match(QUERY, "") == lexical_match("", "text") == 0
    assert 0.5 < lexical_match(QUERY, QUERY) < 1


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    world = rcp.simulate(n_queries=3, pool_size=40, seed=4, noise=0.5)
    world.write(folder / "world")
    write_simulated_pool(world, folder / "pool")
    return world, SimulatedJudge.from_folder(folder / "world"), read_pool(folder / "pool")


def test_simulated_judge_knows_the_truth(simulated):
    world, judge, pool = simulated
    texts = pool.corpus["text"].tolist()
    truth = world.truth.set_index("doc_id").loc[pool.corpus["doc_id"]]
    errors, expected, passed = [], np.zeros(5), np.zeros(5)
    for start in range(0, len(texts) - 9, 3):
        window = slice(start, start + 10)
        scores = np.array(ask(judge, "a", "need", texts[window]).scores)
        ability = truth["ability"].to_numpy()[window]
        if np.abs(scores).max() < 5:
            errors.append(scores - (ability - ability.mean()))
        passed += np.sum(ask(judge, "b", "need", texts[window]).passes, axis=0)
        parameters = np.array(world.truth_info["gamma"]), np.array(world.truth_info["beta"])
        expected += pass_probability(truth["theta"].to_numpy()[window], *parameters).sum(axis=0)
    noise = np.sqrt(np.mean(np.square(errors)))
    assert noise == pytest.approx(0.5, rel=0.15)  # a few hundred scores: se 3%
    assert np.abs(passed - expected).max() < 4 * np.sqrt(expected.max())


def test_folder_without_a_truth_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no truth .*rcp-bayes simulate"):
        SimulatedJudge.from_folder(tmp_path)
    (tmp_path / "truth.json").write_text("{}")
    with pytest.raises(InputError, match="no truth"):
        SimulatedJudge.from_folder(tmp_path)
    rcp.simulate(n_queries=1, pool_size=12).write(tmp_path)
    (tmp_path / "truth.json").write_text('{"gamma": [1]}')
    with pytest.raises(InputError, match="beta"):
        SimulatedJudge.from_folder(tmp_path)


def test_prompt_of_another_layout_is_refused():
    with pytest.raises(ValueError, match="query"):
        LexicalJudge().reply([{"role": "user", "content": "hello"}])
