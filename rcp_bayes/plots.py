"""Figures: axes in, axes out; every number is computed elsewhere.

`style()` is the one style sheet: readable at column width (3.4 in), colour-blind safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.gain import gain as rcp_gain
from rcp_bayes.gain import pass_probability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rcp_bayes.items import Items

COLUMN, PAGE = 3.4, 7.0  # widths of one column and of a page, inches
# Okabe-Ito without yellow, which is too light for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


@contextmanager
def style() -> Iterator[None]:
    """The style of every figure, as a context."""
    import matplotlib as mpl
    from cycler import cycler

    settings: dict[Any, Any] = {
        "figure.dpi": 150,
        "savefig.dpi": 200,
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=COLORS),
        "legend.frameon": False,
        "legend.fontsize": 7,
        "figure.constrained_layout.use": True,
        "svg.hashsalt": "rcp-bayes",
    }
    with mpl.rc_context(settings):
        yield


def new_figure(width: float = COLUMN, height: float = 2.6, **more: Any) -> tuple[Figure, Any]:
    """A figure without any global state (no pyplot), and what its `subplots(**more)` gives."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**more)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    return path


def criterion_curves(
    ax: Axes,
    items: Items,
    theta: np.ndarray,
    pass_rates: Sequence[float] | None = None,
) -> Axes:
    """Pass probability of each criterion and the gain over a histogram of the pool (Figure 3).

    Parameters
    ----------
    ax : Axes
    items : Items
        Discriminations and difficulties, in rubric order.
    theta : (D,) array
        Calibrated abilities of the pool, logits; NaN left out.
    pass_rates : (C,) sequence, optional
        Share of answers that pass each criterion, for the legend.
    """
    theta = theta[np.isfinite(theta)]
    low = min(np.min(items.beta) - 3, np.min(theta))
    high = max(np.max(items.beta) + 3, np.max(theta))
    grid = np.linspace(low, high, 400)
    pool = ax.twinx()
    pool.hist(theta, bins=60, range=(low, high), color="0.72", zorder=1)
    pool.set_ylabel("pool documents", color="0.45")
    pool.tick_params(axis="y", colors="0.45")
    pool.spines["right"].set_visible(True)
    pool.spines["right"].set_color("0.7")
    ax.set_zorder(pool.get_zorder() + 1)
    ax.patch.set_visible(False)
    probability = pass_probability(grid, items.gamma, items.beta)
    lines = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))
    for c, criterion in enumerate(items.criteria):
        beta = f"{items.beta[c]:+.2f}".replace("-", "\N{MINUS SIGN}")
        label = rf"{criterion.id}  $\gamma$={items.gamma[c]:.2f}  $\beta$={beta}"
        if pass_rates is not None:
            label += f"  pass {100 * pass_rates[c]:.1f}%"
        color = COLORS[c % len(COLORS)]
        ax.plot(grid, probability[:, c], lw=1.1, ls=lines[c % len(lines)], color=color, label=label)
    ax.plot(grid, rcp_gain(grid, items.gamma, items.beta), lw=2.2, color="0.1", label="gain $g$")
    if len(items.criteria) >= 4:  # the paper shades at the first and the fourth difficulty
        pool.axvspan(low, items.beta[0], color="0.94", lw=0, zorder=0)
        shade = pool.axvspan(items.beta[3], high, color="0.94", lw=0, zorder=0)
        first, fourth = items.criteria[0].id, items.criteria[3].id
        shade.set_label(f"below {first}, above {fourth}")
    ax.set(xlim=(low, high), ylim=(0, 1.02))
    ax.set_xlabel(r"calibrated ability $\tilde\theta$ (logits)")
    ax.set_ylabel("pass probability, gain")
    handles, labels = ax.get_legend_handles_labels()
    more = pool.get_legend_handles_labels()
    ax.legend(
        [*handles, *more[0]],
        [*labels, *more[1]],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        ncols=2,
        handlelength=2.2,
    )
    return ax


def recovery(ax: Axes, truth: np.ndarray, estimate: np.ndarray, *, quantity: str) -> Axes:
    """Estimates against the truth of a simulated world, with the diagonal of a perfect fit.

    Parameters
    ----------
    ax : Axes
    truth, estimate : (n,) array
        On the same scale, named by `quantity` in both axis labels.
    """
    ax.scatter(truth, estimate, s=4, lw=0, alpha=0.35, color=COLORS[0], rasterized=True)
    both = np.concatenate([truth, estimate])
    ends = np.array([np.min(both), np.max(both)])
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--", label="perfect recovery")
    ax.set(xlabel=f"true {quantity}", ylabel=f"estimated {quantity}")
    ax.set_aspect("equal", adjustable="box")
    ax.legend(loc="upper left")
    return ax


def query_strips(
    ax: Axes, groups: Sequence[np.ndarray], names: Sequence[str], *, label: str
) -> Axes:
    """One strip of document scores per query, with its median (after Figure 8).

    Parameters
    ----------
    ax : Axes
    groups : sequence of (n,) arrays
        Scores of each query's documents; NaN left out.
    names : sequence of str
        Query names, for the vertical axis.
    label : str
        What the scores are and their unit.
    """
    jitter = np.random.default_rng(0)  # position only, so that points do not hide each other
    for row, group in enumerate(groups):
        values = np.asarray(group, dtype=float)
        values = values[np.isfinite(values)]
        height = row + jitter.uniform(-0.3, 0.3, len(values))
        ax.scatter(values, height, s=3, lw=0, alpha=0.5, color=COLORS[0], rasterized=True)
        label_once = "median" if row == 0 else None
        middle = [np.median(values)] * 2
        ax.plot(middle, [row - 0.4, row + 0.4], color=COLORS[1], lw=1.5, label=label_once)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel=label, ylabel="query", ylim=(-0.6, len(names) - 0.4))
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    ax.grid(axis="x", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    return ax
