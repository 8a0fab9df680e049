"""Small simulated worlds as observations, for the tests of the joint model."""

from functools import cache

import numpy as np

import rcp_bayes as rcp
from rcp_bayes.inference.joint_data import joint_data
from rcp_bayes.observations import observe


@cache
def world(seed=1, n_queries=4, pool=(12, 12, 10, 11), noise=0.7, **options):
    """Judgments of a simulated world, and the world."""
    made = rcp.simulate(
        n_queries=n_queries, pool_size=list(pool), noise=noise, seed=seed, **options
    )
    return observe(rcp.Judgments.from_frames(made.stage_a, made.stage_b)), made


def small_data(scored=True, **options):
    """Joint data of `world`, with pivots off centre so that they matter."""
    data = joint_data(world(**options)[0], scored=scored)
    return data.with_pivots(np.linspace(0.5, 1.5, data.n_queries))
