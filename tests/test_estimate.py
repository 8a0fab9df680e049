"""What a pass will take, against what the same pass then asks."""

import pytest
from judging import TASK, ask_server, completion, judge, scripted, select, write_pool

from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.estimate import estimate


def test_an_estimate_is_what_the_run_asks(tmp_path):
    def answer(body, n):
        return 200, completion(LexicalJudge().reply(body["messages"])), {}

    pool = write_pool(tmp_path / "pool")
    guess = estimate(pool, TASK, prices=(2.0, 10.0))
    with scripted(answer) as server:
        result = judge(pool, tmp_path / "out", ask_server(server))
        shown = sum(len(body["messages"][0]["content"]) for body in server.requests)
    assert guess.calls == result.windows and (guess.queries, guess.documents) == (3, 60)
    # Windows hold all documents equally often but for one, and those are of nearly one length.
    assert sum(guess.prompt_tokens.values()) == pytest.approx(shown / 4, rel=0.01)
    ((given,),) = select(tmp_path / "out", "SELECT sum(length(content)) FROM attempts")
    assert sum(guess.answer_tokens.values()) == pytest.approx(given / 4, rel=0.15)


def test_cost_and_given_lengths(tmp_path):
    pool = write_pool(tmp_path / "pool")
    guess = estimate(pool, TASK, prices=(2.0, 10.0))
    asked, answered = (sum(t.values()) for t in (guess.prompt_tokens, guess.answer_tokens))
    assert guess.cost == pytest.approx((2 * asked + 10 * answered) / 1e6, rel=1e-3)
    only_in = estimate(pool, TASK, prices=(2.0, None))
    assert only_in.cost == pytest.approx(2 * asked / 1e6, rel=1e-3)
    assert estimate(pool, TASK).cost is None
    reasoned = estimate(pool, TASK, answer_tokens=500)
    assert reasoned.answer_tokens == {"a": 54 * 500, "b": 18 * 500}
    text = " ".join(guess.lines())
    assert "72 calls" in text and "cost" in text and "4 characters" in text
    assert "--answer-tokens" in text and "--answer-tokens" not in " ".join(reasoned.lines())


def test_long_documents_count_as_they_are_cut(tmp_path):
    pool = write_pool(tmp_path / "pool")
    pool.corpus["text"] = "x " * 10_000
    sizes = [sum(estimate(pool, TASK).prompt_tokens.values())]
    pool.corpus["text"] = "x " * 100_000
    sizes.append(sum(estimate(pool, TASK).prompt_tokens.values()))
    assert sizes[0] == sizes[1] == pytest.approx(72 * 5 * TASK.budget / 4, rel=0.15)
