"""How well the paper's MAP recovers the truth of simulated worlds, at the paper's schedule.

Default: 20 seeds x 50 queries x 150 documents. Prints bias and root mean square error of every
parameter, with the standard error of the bias over seeds. The baseline of the same run is the gain
read from the tournament alone (raw, centred Bradley-Terry scores under the same criteria) and the
pass share of Count-nDCG.

The last tables tell where the bias of tau and of the outer difficulties comes from: the slope of
Bradley-Terry scores on true abilities, over all documents and over those within 2 logits of their
query's mean, with the paper's ridge and with next to none; and the criteria that Eq. 7 finds when
it is given the true abilities, so that the judge's answers and its own ridge are all that is left.
"""

import argparse

import numpy as np
import pandas as pd

import rcp_bayes as rcp
from rcp_bayes.gain import gain
from rcp_bayes.inference.bradley_terry import fit_bradley_terry
from rcp_bayes.inference.map import fit_two_pl
from rcp_bayes.inference.runtime import use_compilation_cache
from rcp_bayes.observations import observe

KEYS = ["dataset", "query_id", "doc_id"]


def errors(seed: int, queries: int, pool: int, noise: float) -> dict[str, np.ndarray]:
    """Estimate minus truth of every quantity in one world."""
    world = rcp.simulate(n_queries=queries, pool_size=pool, noise=noise, seed=seed)
    fit = rcp.fit(rcp.Judgments.from_frames(world.stage_a, world.stage_b))
    documents = fit.labels.merge(world.truth, on=KEYS, suffixes=("", "_true"))
    truth = world.truth.drop_duplicates(KEYS[:2])
    per_query = fit.queries.merge(truth, on=KEYS[:2], suffixes=("", "_true"))
    raw = gain(documents["bt"].to_numpy(), fit.items.gamma, fit.items.beta)
    found = {
        "gain": documents["gain"] - documents["gain_true"],
        "gain, raw BT": raw - documents["gain_true"],
        "gain, pass share": documents["pass_share"] - documents["gain_true"],
        "theta": documents["theta"] - documents["theta_true"],
        "tau": per_query["tau"] - per_query["tau_true"],
        "alpha": per_query["alpha"] - per_query["alpha_true"],
    }
    for name in ("gamma", "beta"):
        error = getattr(fit.items, name) - np.array(world.truth_info[name])
        found |= {
            f"{name} {criterion.id}": error[c : c + 1]
            for c, criterion in enumerate(fit.items.criteria)
        }
    return {name: np.asarray(values) for name, values in found.items()}


def slopes(seed: int, queries: int, pool: int, noise: float) -> dict[str, float]:
    """Regression slope of Bradley-Terry scores on true abilities in one world."""
    world = rcp.simulate(n_queries=queries, pool_size=pool, noise=noise, seed=seed)
    observed = observe(rcp.Judgments.from_frames(world.stage_a, world.stage_b))
    truth = world.truth.set_index("doc_id")["ability"]  # document ids are unique in a world
    ability = truth.loc[observed.universe.doc_id].to_numpy()
    middle = np.abs(ability) < 2
    found = {}
    for ridge in (1e-4, 1e-9):
        theta = fit_bradley_terry(observed.universe.offset, observed.windows, ridge=ridge).theta
        found[f"ridge {ridge:g}, all"] = np.polyfit(ability, theta, 1)[0]
        found[f"ridge {ridge:g}, middle"] = np.polyfit(ability[middle], theta[middle], 1)[0]
    return found


def criteria_at_truth(seed: int, queries: int, pool: int) -> pd.DataFrame:
    """True criteria beside those fitted to Stage B at the true abilities, in one world."""
    world = rcp.simulate(n_queries=queries, pool_size=pool, seed=seed)
    observed = observe(rcp.Judgments.from_frames(world.stage_a, world.stage_b))
    universe = observed.universe
    ability = world.truth.set_index("doc_id").loc[universe.doc_id, "ability"].to_numpy()
    fit = fit_two_pl(ability, universe.query, observed.n_placements, observed.passes, queries)
    truth = {name: world.truth_info[name] for name in ("gamma", "beta")}
    found = {"gamma found": fit.gamma, "beta found": fit.beta}
    return pd.DataFrame(truth | found, index=world.truth_info["criteria"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--pool", type=int, default=150)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.5])
    arguments = parser.parse_args()
    use_compilation_cache()
    for noise in arguments.noise:
        worlds = [
            errors(seed, arguments.queries, arguments.pool, noise)
            for seed in range(arguments.seeds)
        ]
        rows = []
        for name in worlds[0]:
            bias = np.array([world[name].mean() for world in worlds])
            square = np.mean([np.mean(world[name] ** 2) for world in worlds])
            error = bias.std(ddof=1) / np.sqrt(len(bias)) if len(bias) > 1 else np.nan
            rows.append((name, bias.mean(), error, np.sqrt(square)))
        table = pd.DataFrame(rows, columns=["quantity", "bias", "bias se", "RMSE"])
        print(f"judge noise {noise}: {arguments.seeds} worlds of {arguments.queries} queries")
        print(table.to_string(index=False, float_format="{:.3f}".format), flush=True)
    attenuation = []
    for noise in sorted({0.0, *arguments.noise}):
        found = slopes(0, arguments.queries, arguments.pool, noise)
        attenuation.append({"judge noise": noise} | found)
    print("slope of Bradley-Terry scores on true abilities, one world")
    print(pd.DataFrame(attenuation).to_string(index=False, float_format="{:.3f}".format))
    print("criteria fitted at the true abilities, one world")
    criteria = criteria_at_truth(0, arguments.queries, arguments.pool)
    print(criteria.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
