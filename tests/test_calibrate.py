"""The whole MAP path on real judgments, against values of the shared data's README."""

import ast
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rcp_bayes as rcp

CRITERIA = ["U1", "U2", "U3", "E5", "B4o"]
KNOWN = {
    "dl19": ([1.138, 1.173, 1.002, 0.443, 1.243], [-3.243, -0.164, 3.084, 1.528, -1.205], 0.325307),
    "dl21": ([0.989, 1.178, 0.958, 0.441, 1.435], [-3.269, 0.080, 3.252, 1.188, -1.251], 0.302938),
}


@pytest.fixture(scope="module")
def fits(shared_data):
    folders = {name: shared_data / name / "judgments" for name in KNOWN}
    return {name: rcp.fit(folder, criteria=CRITERIA) for name, folder in folders.items()}


@pytest.mark.parametrize("name", KNOWN)
def test_known_right_values(fits, name):
    gamma, beta, objective = KNOWN[name]
    found = fits[name]
    # Half a unit of the last printed digit.
    np.testing.assert_allclose(found.items.gamma, gamma, atol=5e-4)
    np.testing.assert_allclose(found.items.beta, beta, atol=5e-4)
    assert found.info["objective"] == pytest.approx(objective, abs=5e-7)
    assert found.info["max_gradient"] <= 1e-5
    assert found.info["converged"]


def test_constraints_hold(fits):
    for found in fits.values():
        assert abs(found.items.gamma.sum() - 5) < 1e-12
        assert abs(found.items.beta.mean()) < 1e-12


def test_order_within_query_is_the_tournament_order(fits):
    for found in fits.values():
        labels = found.labels.dropna(subset=["theta"])
        for _, query in labels.groupby(["dataset", "query_id"]):
            assert query["bt"].rank().equals(query["theta"].rank())


def test_documents_without_a_tournament_have_null_scores(fits):
    for found in fits.values():
        alone = found.labels["n_windows"] == 0
        assert alone.any()
        assert found.labels.loc[alone, ["bt", "theta", "gain"]].isna().all(axis=None)
        judged = found.labels.loc[~alone & (found.labels["n_placements"] > 0)]
        assert judged[["bt", "theta", "gain", "pass_share"]].notna().all(axis=None)


def test_counts_tell_what_did_not_enter(fits):
    info = fits["dl19"].info
    labels = fits["dl19"].labels
    both = labels["bt"].notna() & (labels["n_placements"] > 0)
    assert info["counts"]["responses_fitted"] == labels.loc[both, "n_placements"].sum()
    assert len(labels) == 9255


def test_two_runs_agree_to_the_bit(shared_data, fits):
    again = rcp.fit(shared_data / "dl19" / "judgments", criteria=CRITERIA)
    pd.testing.assert_frame_equal(again.labels, fits["dl19"].labels, check_exact=True)


def test_optimizers_agree(shared_data, fits):
    plain = rcp.fit(shared_data / "dl19" / "judgments", criteria=CRITERIA, optimizer="lbfgs")
    assert abs(plain.info["objective"] - fits["dl19"].info["objective"]) < 1e-9


def frames(stage_b_answers):
    """One query of three documents in one window, answered once."""
    documents = ["a", "b", "c"]
    base = {"query_id": "q", "window_id": "w", "doc_id": documents}
    stage_a = pd.DataFrame(base | {"score": [2.0, 0.5, -1.0]})
    return stage_a, pd.DataFrame(base | stage_b_answers)


def test_everybody_passes_or_fails_everything():
    stage_a, stage_b = frames({"C1": [1, 1, 1], "C2": [0, 0, 0]})
    found = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b))
    assert np.isfinite(found.labels["gain"]).all()
    assert np.isfinite(found.items.beta).all()
    text = " ".join(found.info["warnings"])
    assert "C1" in text and "C2" in text


def test_one_criterion():
    stage_a, stage_b = frames({"C1": [1, 1, 0]})
    found = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b))
    assert found.items.gamma.tolist() == [1.0]
    assert found.items.beta.tolist() == [0.0]
    assert found.labels["gain"].between(0, 1).all()


def test_one_document_query_keeps_its_prior_scale():
    row = {"query_id": ["q"], "window_id": ["w"], "doc_id": ["a"]}
    stage_a = pd.DataFrame(row | {"score": [3.0]})
    stage_b = pd.DataFrame(row | {"C1": [1], "C2": [0]})
    found = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b))
    assert found.labels["bt"].tolist() == [0.0]
    assert found.queries["tau"].iloc[0] == pytest.approx(1.0, abs=1e-8)


def test_query_of_one_stage_is_reported_not_scored():
    stage_a, stage_b = frames({"C1": [1, 1, 0], "C2": [1, 0, 0]})
    more = stage_a.assign(query_id="only-a")
    judgments = rcp.Judgments.from_frames(pd.concat([stage_a, more]), stage_b)
    found = rcp.fit(judgments)
    alone = found.labels["query_id"] == "only-a"
    assert found.labels.loc[alone, ["theta", "gain"]].isna().all(axis=None)
    assert found.labels.loc[alone, "bt"].notna().all()
    expected = [{"dataset": "default", "query_id": "only-a"}]
    assert found.info["queries_without_calibration"] == expected


def test_frozen_items_are_used_as_printed():
    stage_a, stage_b = frames({f"C{c}": [1, int(c < 4), int(c < 2)] for c in range(1, 6)})
    items = rcp.load_items("nanobeir-qwen3.5-397b")
    found = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b), items="nanobeir-qwen3.5-397b")
    np.testing.assert_array_equal(found.items.gamma, items.gamma)
    assert found.items.rounded
    with pytest.raises(rcp.InputError, match="C5"):
        rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b.drop(columns="C5")), items=items)


@settings(max_examples=15, deadline=None)
@given(
    scores=st.lists(
        st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=4, max_size=4),
        min_size=1,
        max_size=4,
    ),
    answers=st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=4, max_size=4),
)
def test_proposition_3_1_order_is_kept_for_any_answers(scores, answers):
    documents = ["a", "b", "c", "d"]
    rows = [
        {"query_id": "q", "window_id": f"w{i}", "doc_id": name, "score": score}
        for i, window in enumerate(scores)
        for name, score in zip(documents, window, strict=True)
    ]
    stage_b = pd.DataFrame(answers, columns=["C1", "C2", "C3"])
    stage_b = stage_b.assign(query_id="q", window_id="w", doc_id=documents)
    labels = rcp.fit(rcp.Judgments.from_frames(pd.DataFrame(rows), stage_b)).labels
    order = labels.sort_values("bt")
    assert order["theta"].is_monotonic_increasing
    assert order["gain"].is_monotonic_increasing


def test_jax_used_before_in_32_bits_changes_nothing():
    code = (
        "import jax, jax.numpy as jnp\n"
        "first = jnp.ones(1)\n"
        "import pandas as pd, rcp_bayes as rcp\n"
        "base = {'query_id': 'q', 'window_id': 'w', 'doc_id': ['a', 'b', 'c']}\n"
        "a = pd.DataFrame(base | {'score': [2.0, 0.5, -1.0]})\n"
        "b = pd.DataFrame(base | {'C1': [1, 1, 0], 'C2': [1, 0, 0]})\n"
        "found = rcp.fit(rcp.Judgments.from_frames(a, b))\n"
        "assert found.info['max_gradient'] < 1e-5\n"
        "assert not jax.config.jax_enable_x64 and jnp.ones(1).dtype == 'float32'\n"
        "print(repr(found.labels['theta'].tolist()))"
    )
    env = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    stage_a, stage_b = frames({"C1": [1, 1, 0], "C2": [1, 0, 0]})
    here = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b)).labels["theta"].tolist()
    assert ast.literal_eval(out.stdout) == here


def test_priors_in_words_are_those_of_the_model():
    from rcp_bayes.models.two_pl import PaperPrior

    stage_a, stage_b = frames({"C1": [1, 1, 0]})
    words = rcp.fit(rcp.Judgments.from_frames(stage_a, stage_b)).items.priors
    prior = PaperPrior()
    assert words["tau"] == f"normal({prior.tau_mean:g}, {prior.tau_sd:g})"
    assert words["alpha"] == f"normal(0, {prior.alpha_sd:g})"
    assert float(words["u"].split("lambda = ")[1]) == prior.ridge
