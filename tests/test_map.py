"""The calibration by MAP: scipy on Eq. 7 as printed, hard inputs, known truth, real data."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from stage_b import LOWER, World, by_scipy, draw, eq7, small

from rcp_bayes.errors import InputError, RcpError, UsageError
from rcp_bayes.inference.arrow import Point
from rcp_bayes.inference.bradley_terry import fit_bradley_terry
from rcp_bayes.inference.link_system import link_system
from rcp_bayes.inference.map import CERTIFIED, MIN_TAU, fit_two_pl
from rcp_bayes.inference.rows import lay_in_rows
from rcp_bayes.io import read_judgments
from rcp_bayes.models.two_pl import PaperPrior
from rcp_bayes.observations import observe

# Names of the warnings are the last word of each, in parentheses.


def warned(fit):
    return {text.rsplit("(", 1)[1].rstrip(")") for text in fit.warnings}


def finite(fit):
    numbers = [fit.tau, fit.alpha, fit.gamma, fit.beta, fit.objective, fit.max_gradient]
    return all(np.isfinite(number).all() for number in numbers)


def agrees_with_scipy(fit, world, items=None):
    """Objective within 1e-9 of L-BFGS-B on Eq. 7, and the same parameters to 1e-5."""
    objective, tau, alpha, *_ = by_scipy(world, items=items)
    assert fit.objective == pytest.approx(objective, rel=0, abs=1e-9)
    # The objective is flat at its optimum: 1e-12 in it is about 1e-5 in a parameter.
    np.testing.assert_allclose(fit.tau, tau, rtol=0, atol=1e-5)
    np.testing.assert_allclose(fit.alpha, alpha, rtol=0, atol=1e-5)
    assert fit.converged and fit.max_gradient <= CERTIFIED


def contradicted(world, queries):
    """The world with the Stage A scores of some queries turned upside down."""
    sign = np.where(np.isin(world.query, queries), -1.0, 1.0)
    return dataclasses.replace(world, ability=world.ability * sign)


class TestOptimum:
    @pytest.mark.parametrize("optimizer", ["newton", "lbfgs"])
    def test_is_that_of_scipy(self, optimizer):
        world = small()
        fit = fit_two_pl(*world.arguments, optimizer=optimizer)
        agrees_with_scipy(fit, world)
        assert not fit.at_boundary.any() and fit.warnings == ()
        assert fit.n_responses == world.n_placements.sum()

    def test_certificate_is_the_gradient_of_eq7(self):
        # In (tau, alpha, u, v), which for tau is at least as strict as in t.
        world = small()
        fit = fit_two_pl(*world.arguments)
        u = np.log(fit.gamma)
        value, gradient = eq7(fit.tau, fit.alpha, u - u.mean(), fit.beta, world)
        assert fit.objective == pytest.approx(value, rel=0, abs=1e-13)
        n_answers = fit.n_responses * len(fit.gamma)
        # The paper's v has mean 0 at the optimum, and its u: the ridge alone moves their level.
        assert np.abs(gradient * n_answers).max() < 1e-6

    def test_constraints(self):
        fit = fit_two_pl(*small(3).arguments)
        assert fit.gamma.sum() == pytest.approx(3, rel=0, abs=1e-12)
        assert fit.beta.mean() == pytest.approx(0, abs=1e-12)
        assert (fit.gamma > 0).all() and (fit.tau > 0).all()

    @pytest.mark.parametrize("optimizer", ["newton", "lbfgs"])
    def test_two_runs_give_the_same_bits(self, optimizer):
        world = small(1)
        one, two = (fit_two_pl(*world.arguments, optimizer=optimizer) for _ in range(2))
        for field in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))

    def test_two_processes_give_the_same_bits(self):
        # Python hashes names differently in every process, and NumPyro keeps sites in sets.
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from stage_b import small\n"
            "from rcp_bayes.inference.map import fit_two_pl\n"
            "fit = fit_two_pl(*small(1).arguments)\n"
            "print(fit.objective.hex(), fit.tau.tobytes().hex(), fit.max_gradient.hex())\n"
        )
        said = [
            subprocess.run(
                [sys.executable, "-c", script, str(Path(__file__).parent)],
                env=os.environ | {"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        ]
        assert said[0] == said[1] and said[0].startswith("0x1.")

    def test_documents_in_any_order(self):
        world = small(2)
        order = np.random.default_rng(0).permutation(len(world.query))
        one, two = (fit_two_pl(*w.arguments) for w in (world, world.only(order)))
        np.testing.assert_allclose(one.tau, two.tau, rtol=1e-9)
        assert one.objective == pytest.approx(two.objective, rel=0, abs=1e-13)

    def test_pools_of_very_different_sizes(self):
        rng = np.random.default_rng(5)
        sizes = np.array([200, 1, 3, 40, 2, 9])
        parts = [draw(k, [1.2], [-1.0], [1.1, 0.9], [-1, 1], pool=n, placements=5 * n)
                 for k, n in enumerate(sizes)]  # fmt: skip
        columns = zip(*(part.arguments[:4] for part in parts), strict=True)
        ability, query, n, passes = (np.concatenate(column) for column in columns)
        query = np.repeat(np.arange(6), sizes)
        world = World(ability, query, n, passes, 6).only(rng.permutation(len(query)))
        agrees_with_scipy(fit_two_pl(*world.arguments), world)

    def test_other_priors(self):
        # A prior so narrow that it decides: every query at its mean.
        world = small()
        fit = fit_two_pl(*world.arguments, prior=PaperPrior(tau_mean=2.0, tau_sd=1e-4))
        np.testing.assert_allclose(fit.tau, 2.0, atol=1e-3)
        assert fit.converged

    def test_the_global_precision_of_jax_does_not_matter(self):
        world = small()
        inside = fit_two_pl(*world.arguments)
        with jax.enable_x64(False):
            outside = fit_two_pl(*world.arguments)
            assert not jax.config.jax_enable_x64
        assert outside.objective == inside.objective


class TestBoundary:
    @pytest.mark.parametrize("optimizer", ["newton", "lbfgs"])
    def test_contradicted_queries_rest_on_it(self, optimizer):
        world = contradicted(small(4), [1, 5])
        fit = fit_two_pl(*world.arguments, optimizer=optimizer)
        assert np.flatnonzero(fit.at_boundary).tolist() == [1, 5]
        assert (fit.tau[[1, 5]] == MIN_TAU).all() and MIN_TAU == LOWER
        # Their offsets are fitted, and everything else with them, as scipy does over tau >= 1e-3.
        agrees_with_scipy(fit, world)

    def test_every_query_contradicted(self):
        world = contradicted(small(4), range(7))
        fit = fit_two_pl(*world.arguments)
        assert fit.at_boundary.all() and finite(fit) and fit.converged
        agrees_with_scipy(fit, world)


class TestHeldItems:
    ITEMS = (np.array([2.0, 1.0, 2.01]), np.array([-2.0, 0.5, 4.0]))

    @pytest.mark.parametrize("optimizer", ["newton", "lbfgs"])
    def test_are_used_as_they_are(self, optimizer):
        # Their sum is 5.01, not 3, and their mean is not 0.
        world = small()
        fit = fit_two_pl(*world.arguments, items=self.ITEMS, optimizer=optimizer)
        np.testing.assert_array_equal(fit.gamma, self.ITEMS[0])
        np.testing.assert_array_equal(fit.beta, self.ITEMS[1])
        agrees_with_scipy(fit, world, self.ITEMS)

    def test_queries_do_not_meet(self):
        world = small()
        together = fit_two_pl(*world.arguments, items=self.ITEMS)
        fit = fit_two_pl(*world.only(world.query == 3).arguments, items=self.ITEMS)
        assert fit.tau[3] == pytest.approx(together.tau[3], abs=1e-8)
        assert fit.alpha[3] == pytest.approx(together.alpha[3], abs=1e-8)

    def test_rasch_form_fits_worse_than_the_items_it_came_from(self):
        # E.1: every discrimination 1, difficulties kept.
        world = small(gamma=(1.9, 0.8, 0.3), beta=(-1.0, 0.0, 1.0))
        full = fit_two_pl(*world.arguments)
        rasch = fit_two_pl(*world.arguments, items=(np.ones(3), full.beta))
        same = fit_two_pl(*world.arguments, items=(full.gamma, full.beta))
        assert rasch.converged and rasch.objective > same.objective
        np.testing.assert_allclose(same.tau, full.tau, atol=1e-6)

    @pytest.mark.parametrize(
        ("gamma", "beta"),
        [
            ([1, 1], [0, 0]),
            ([1, 1, 0], [0, 0, 0]),
            ([1, 1, np.nan], [0, 0, 0]),
            ([1, 1, 1], [0, np.inf, 0]),
        ],
    )
    def test_impossible_ones_are_refused(self, gamma, beta):
        with pytest.raises(InputError, match="held"):
            fit_two_pl(*small().arguments, items=(gamma, beta))


class TestDegenerate:
    def test_one_criterion(self):
        world = small(gamma=(1.0,), beta=(0.0,))
        fit = fit_two_pl(*world.arguments)
        np.testing.assert_array_equal(fit.gamma, [1.0])
        np.testing.assert_array_equal(fit.beta, [0.0])
        agrees_with_scipy(fit, world)

    def test_criteria_that_every_or_no_response_passes(self):
        base = small()
        extremes = np.stack([base.n_placements, 0 * base.n_placements], axis=1)
        world = dataclasses.replace(base, passes=np.hstack([base.passes, extremes]))
        fit = fit_two_pl(*world.arguments, criterion_names=["A", "B", "C", "easy", "hard"])
        agrees_with_scipy(fit, world)
        assert finite(fit) and fit.beta.argmin() == 3 and fit.beta.argmax() == 4
        assert warned(fit) == {"always_passed", "never_passed"}
        assert fit.warnings[0].startswith("easy:") and fit.warnings[1].startswith("hard:")
        # The order of the documents within a query is that of Stage A whatever the criteria.
        assert (fit.tau > 0).all()

    def test_queries_that_pass_or_fail_everything(self):
        base = small()
        passes = np.where((base.query == 0)[:, None], base.n_placements[:, None], base.passes)
        passes[base.query == 1] = 0
        world = dataclasses.replace(base, passes=passes)
        fit = fit_two_pl(*world.arguments, query_names=[f"q{j}" for j in range(7)])
        agrees_with_scipy(fit, world)
        assert finite(fit) and fit.alpha[0] > 2 and fit.alpha[1] < -2
        assert warned(fit) == {"all_passed", "all_failed"}
        assert fit.warnings[0].startswith("q0:") and fit.warnings[1].startswith("q1:")

    def test_everything_passes_everything(self):
        base = small()
        world = dataclasses.replace(base, passes=np.repeat(base.n_placements[:, None], 3, axis=1))
        fit = fit_two_pl(*world.arguments)
        agrees_with_scipy(fit, world)
        np.testing.assert_allclose(fit.gamma, 1.0, rtol=1e-9)
        assert finite(fit) and warned(fit) == {"always_passed", "all_passed"}

    def test_query_of_one_document_has_the_scale_of_its_prior(self):
        base = small()
        first = np.flatnonzero(base.query == 2)[:1]
        keep = (base.query != 2) | (np.arange(len(base.query)) == first)
        world = base.only(keep)
        world.ability[world.query == 2] = 0.0
        world.n_placements[world.query == 2], world.passes[world.query == 2] = 5, 2
        fit = fit_two_pl(*world.arguments)
        assert fit.tau[2] == pytest.approx(1.0, abs=1e-8) and not fit.at_boundary[2]
        assert warned(fit) == {"one_document"} and "query 2" in fit.warnings[0]
        agrees_with_scipy(fit, world)

    def test_documents_without_placements_change_nothing(self):
        base = small()
        more = World(
            np.concatenate([base.ability, [9.0, -3.0]]),
            np.concatenate([base.query, [0, 6]]),
            np.concatenate([base.n_placements, [0, 0]]),
            np.concatenate([base.passes, np.zeros((2, 3), dtype=int)]),
            base.n_queries,
        )
        one, two = fit_two_pl(*base.arguments), fit_two_pl(*more.arguments)
        np.testing.assert_allclose(two.tau, one.tau, rtol=1e-10)
        assert two.n_responses == one.n_responses and two.warnings == ()

    def test_query_without_responses_keeps_its_prior(self):
        base = small()
        without = base.only(base.query != 4)
        fit = fit_two_pl(*without.arguments)
        assert fit.tau[4] == pytest.approx(1.0, abs=1e-8)
        assert fit.alpha[4] == pytest.approx(0.0, abs=1e-8)
        assert warned(fit) == {"no_response"}

    def test_equal_scores_leave_the_scale_to_its_prior(self):
        base = small()
        world = dataclasses.replace(base, ability=np.where(base.query == 2, 0.0, base.ability))
        fit = fit_two_pl(*world.arguments)
        assert fit.tau[2] == pytest.approx(1.0, abs=1e-8) and warned(fit) == {"one_score"}

    def test_long_lists_are_cut(self):
        world = small(n_queries=7)
        world = dataclasses.replace(world, passes=np.zeros_like(world.passes))
        fit = fit_two_pl(*world.arguments)
        (line,) = (text for text in fit.warnings if text.endswith("(all_failed)"))
        assert "query 4 and 2 more:" in line and "query 5" not in line


class TestRefused:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("ability", np.nan, "row 4, column ability: nan"),
            ("ability", np.inf, "row 4, column ability: inf"),
            ("query", 7, "row 4, column query: 7"),
            ("query", -1, "row 4, column query: -1"),
            ("n_placements", np.nan, "row 4, column n_placements: nan"),
            ("n_placements", -1, "row 4, column n_placements: -1"),
            ("n_placements", 1.5, "row 4, column n_placements: 1.5"),
            ("passes", np.nan, "row 4, column passes\\[0\\]: nan"),
            ("passes", 99, "row 4, column passes\\[0\\]: 99"),
        ],
    )
    def test_impossible_numbers(self, field, value, message):
        world = small()
        changed = np.array(getattr(world, field), dtype=float)
        changed[3] = value
        with pytest.raises(InputError, match=message):
            fit_two_pl(*dataclasses.replace(world, **{field: changed}).arguments)

    def test_arrays_of_different_lengths(self):
        world = small()
        with pytest.raises(InputError, match="shapes"):
            fit_two_pl(*dataclasses.replace(world, query=world.query[1:]).arguments)
        with pytest.raises(InputError, match="criteria"):
            fit_two_pl(*dataclasses.replace(world, passes=world.passes[:, :0]).arguments)

    def test_no_response_at_all(self):
        world = small()
        nothing = dataclasses.replace(
            world, n_placements=0 * world.n_placements, passes=0 * world.passes
        )
        with pytest.raises(InputError, match="no Stage B response"):
            fit_two_pl(*nothing.arguments)

    def test_a_loss_that_is_not_finite_gives_no_estimates(self):
        world = small()
        far = dataclasses.replace(world, ability=world.ability * 1e306)
        with pytest.raises(RcpError, match="no finite loss"):
            fit_two_pl(*far.arguments)

    def test_a_fit_that_gets_nowhere_says_so(self):
        # The loss is finite and its curvature is not.
        world = small()
        far = dataclasses.replace(world, ability=world.ability * 1e200)
        assert not fit_two_pl(*far.arguments).converged

    def test_unknown_optimizer(self):
        with pytest.raises(UsageError, match="adam"):
            fit_two_pl(*small().arguments, optimizer="adam")


def test_known_truth_is_recovered():
    """Errors in units of their standard deviations, from the Hessian, behave like z-scores."""
    rng = np.random.default_rng(11)
    tau, alpha = np.exp(rng.normal(0.3, 0.3, 60)), rng.normal(-3.0, 1.0, 60)
    gamma, beta = np.array([1.2, 1.1, 0.9, 1.0, 0.8]), np.array([-2.5, -1.5, 0.0, 1.0, 3.0])
    world = draw(12, tau, alpha, gamma, beta, pool=40, placements=2000)
    fit = fit_two_pl(*world.arguments)
    assert fit.converged and not fit.at_boundary.any()

    table = lay_in_rows(*world.arguments[:3], world.passes, 60)
    own = np.ones((table.n_queries, 2))
    own[:60] = np.stack([fit.tau, fit.alpha], axis=1)
    u = np.log(fit.gamma) - np.log(fit.gamma).mean()
    point = (own, np.concatenate([u, fit.beta]))
    system = link_system(Point(*point), table.documents, table.passes, PaperPrior(), None)
    hessian = np.zeros((130, 130))
    for j in range(60):
        block = slice(2 * j, 2 * j + 2)
        hessian[block, block] = system.own[j]
        hessian[block, 120:] = system.cross[j]
        hessian[120:, block] = np.asarray(system.cross[j]).T
    hessian[120:, 120:] = system.shared
    sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
    errors = np.concatenate(
        [
            np.stack([fit.tau - tau, fit.alpha - alpha], axis=1).ravel(),
            u - (np.log(gamma) - np.log(gamma).mean()),
            fit.beta - beta,
        ]
    )
    z = errors / sd
    # The root mean square of 120 z-scores is 1 with a Monte Carlo error of 0.065: four of those.
    assert np.sqrt(np.mean(z[:120] ** 2)) == pytest.approx(1.0, abs=0.26)
    assert np.abs(z[120:]).max() < 4.0


@pytest.mark.parametrize(
    ("name", "gamma", "beta", "objective"),
    [
        (
            "dl19",
            [1.138, 1.173, 1.002, 0.443, 1.243],
            [-3.243, -0.164, 3.084, 1.528, -1.205],
            0.325307,
        ),
        (
            "dl21",
            [0.989, 1.178, 0.958, 0.441, 1.435],
            [-3.269, 0.080, 3.252, 1.188, -1.251],
            0.302938,
        ),
    ],
)
def test_real_judgments(shared_data, name, gamma, beta, objective):
    """Values computed independently (README of the data), to the digits printed."""
    criteria = ["U1", "U2", "U3", "E5", "B4o"]
    judgments = read_judgments(shared_data / name / "judgments", criteria=criteria)
    observed = observe(judgments, criteria=criteria)
    theta = fit_bradley_terry(observed.universe.offset, observed.windows).theta
    both = np.isfinite(theta) & (observed.n_placements > 0)
    queries, query = np.unique(observed.universe.query[both], return_inverse=True)
    n, passes = observed.n_placements[both], observed.passes[both]
    fit = fit_two_pl(theta[both], query, n, passes, len(queries))
    np.testing.assert_allclose(fit.gamma, gamma, rtol=0, atol=6e-4)
    np.testing.assert_allclose(fit.beta, beta, rtol=0, atol=6e-4)
    assert fit.objective == pytest.approx(objective, rel=0, abs=6e-7)
    assert fit.converged and not fit.at_boundary.any() and fit.warnings == ()
    assert fit.n_responses == n.sum() < observed.n_placements.sum()
    if name == "dl21":
        plain = fit_two_pl(theta[both], query, n, passes, len(queries), optimizer="lbfgs")
        assert plain.objective == pytest.approx(fit.objective, rel=0, abs=1e-9)
