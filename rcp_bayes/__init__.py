"""Bayesian calibration of LLM relevance judgments (Rubric-Calibrated Preferences).

A notebook reads like the method::

    import rcp_bayes as rcp

    judgments = rcp.read_judgments("judgments/")  # what the judge answered
    fit = rcp.fit(judgments)                      # Bradley-Terry, then the 2PL calibration
    fit.labels                                    # one row per document: bt, theta, gain
    scores = rcp.score(fit, rcp.read_runs("runs.parquet"), rcp.read_qrels("qrels.txt"))
    scores.leaderboard

The public names load on first use, so that the import itself is fast and leaves JAX alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOMES = {
    "Comparison": "rcp_bayes.comparison",
    "Fit": "rcp_bayes.fitfolder",
    "GainDraws": "rcp_bayes.draws",
    "InputError": "rcp_bayes.errors",
    "Items": "rcp_bayes.items",
    "JudgeError": "rcp_bayes.errors",
    "Judgments": "rcp_bayes.records",
    "RcpError": "rcp_bayes.errors",
    "Scores": "rcp_bayes.evaluate",
    "UsageError": "rcp_bayes.errors",
    "World": "rcp_bayes.simulation",
    "compare": "rcp_bayes.comparison",
    "fit": "rcp_bayes.calibrate",
    "load_items": "rcp_bayes.items",
    "read_fit": "rcp_bayes.fitfolder",
    "read_judgments": "rcp_bayes.io",
    "read_qrels": "rcp_bayes.io",
    "read_runs": "rcp_bayes.io",
    "score": "rcp_bayes.evaluate",
    "simulate": "rcp_bayes.simulation",
    "write_fit": "rcp_bayes.fitfolder",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from rcp_bayes.calibrate import fit as fit
    from rcp_bayes.comparison import Comparison as Comparison
    from rcp_bayes.comparison import compare as compare
    from rcp_bayes.draws import GainDraws as GainDraws
    from rcp_bayes.errors import InputError as InputError
    from rcp_bayes.errors import JudgeError as JudgeError
    from rcp_bayes.errors import RcpError as RcpError
    from rcp_bayes.errors import UsageError as UsageError
    from rcp_bayes.evaluate import Scores as Scores
    from rcp_bayes.evaluate import score as score
    from rcp_bayes.fitfolder import Fit as Fit
    from rcp_bayes.fitfolder import read_fit as read_fit
    from rcp_bayes.fitfolder import write_fit as write_fit
    from rcp_bayes.io import read_judgments as read_judgments
    from rcp_bayes.io import read_qrels as read_qrels
    from rcp_bayes.io import read_runs as read_runs
    from rcp_bayes.items import Items as Items
    from rcp_bayes.items import load_items as load_items
    from rcp_bayes.records import Judgments as Judgments
    from rcp_bayes.simulation import World as World
    from rcp_bayes.simulation import simulate as simulate


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rcp_bayes' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
