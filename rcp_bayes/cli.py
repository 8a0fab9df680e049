"""The command `rcp-bayes`: arguments in, results on stdout, progress on stderr, exit codes.

Thin on purpose: each command reads its arguments, calls one or two library functions and prints.
Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rcp_bayes import __version__, cli_compare, cli_judging
from rcp_bayes.cli_scoring import add_scoring, positive, score_from_arguments
from rcp_bayes.errors import RcpError, UsageError
from rcp_bayes.terminal import present, progress, say, show

EXIT_DONE, EXIT_INTERNAL, EXIT_INTERRUPTED = 0, 1, 130  # errors of ours know their own code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (the contract's table)."""
    # Arrow's default pool keeps freed memory; the system's gives it back. Read once, at its import.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        arguments = build_parser().parse_args(argv)
        code = arguments.run(arguments)
        if sys.stdout is not None:  # None: closed by whoever started us
            sys.stdout.flush()
        return EXIT_DONE if code is None else code
    except RcpError as error:
        say(f"rcp-bayes: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("rcp-bayes: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has seen enough
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except Exception:
        traceback.print_exc()
        say("rcp-bayes: internal error; please report it with the lines above")
        return EXIT_INTERNAL


# --------------------------------------------------------------------------------------- commands


def run_fit(a: argparse.Namespace) -> None:
    from rcp_bayes.calibrate import fit
    from rcp_bayes.fitfolder import prepare_folder, write_fit
    from rcp_bayes.inference.runtime import use_compilation_cache
    from rcp_bayes.render import fit_summary

    prepare_folder(a.out)  # a folder that cannot be written should fail before the work
    use_compilation_cache()
    result = fit(
        a.judgments,
        criteria=a.criteria,
        judge=a.judge,
        items=a.items,
        optimizer=a.optimizer,
        pool=a.pool,
        progress=progress(),
    )
    write_fit(result, a.out)
    for note in result.info["notes"]:
        say(f"note: {note}")
    for warning in result.info["warnings"]:
        say(f"warning: {warning}")
    show(fit_summary(result), f"written to {a.out}")


def run_score(a: argparse.Namespace) -> None:
    from rcp_bayes.io import write_table
    from rcp_bayes.render import leaderboard_text

    scores = score_from_arguments(a)
    if a.out:
        write_table(scores.per_query, a.out)
    present(scores, lambda: leaderboard_text(scores), as_json=a.json)


def run_simulate(a: argparse.Namespace) -> None:
    from rcp_bayes.simulation import simulate

    try:
        world = simulate(n_queries=a.queries, pool_size=a.pool, noise=a.noise, seed=a.seed)
    except ValueError as error:  # a setting out of its range
        raise UsageError(str(error)) from None
    world.write(a.out)
    show(
        f"{a.queries} queries x {a.pool} documents with known truth in {a.out}",
        f"next: rcp-bayes fit {a.out} --out {Path(a.out) / 'fit'}",
    )


def run_demo(a: argparse.Namespace) -> None:
    from rcp_bayes.demo import run
    from rcp_bayes.inference.runtime import use_compilation_cache

    use_compilation_cache()
    show(*run(Path(a.out), say=say))


# ----------------------------------------------------------------------------------------- parser


def names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("names, separated by commas")
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rcp-bayes",
        description="Calibrated relevance labels and RCP-nDCG from LLM judgments.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rcp-bayes {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable, help: str, **more: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, allow_abbrev=False, **more)
        sub.set_defaults(run=run)
        return sub

    demo = command("demo", run_demo, "The whole job on a small world, offline, in about a minute.")
    demo.add_argument("--out", default="rcp-bayes-demo", metavar="DIR", help="default: %(default)s")

    add_fit(command("fit", run_fit, "Judgments to calibrated labels."))
    add_scoring(command("score", run_score, "A leaderboard from labels and runs."))

    sub = command("compare", cli_compare.run_compare, "Which differences between systems hold.")
    add_scoring(sub)
    cli_compare.add_compare(sub)

    judging = cli_judging
    judging.add_pool(command("pool", judging.run_pool, "Candidate pools by rank fusion of runs."))
    judging.add_judge(command("judge", judging.run_judge, "Ask a judge; resumes where it stopped."))
    judging.add_reparse(
        command("reparse", judging.run_reparse, "Read stored answers again, without a call.")
    )
    judging.add_merge(command("merge", judging.run_merge, "Join shards of judgments."))
    judging.add_serve(
        command("serve-judge", judging.run_serve, "A local OpenAI-compatible judge, with faults.")
    )

    sub = command("simulate", run_simulate, "A judgments folder whose truth is known.")
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument(
        "--queries", type=positive, default=50, metavar="N", help="default: %(default)s"
    )
    sub.add_argument(
        "--pool", type=positive, default=150, metavar="N", help="documents a query (%(default)s)"
    )
    sub.add_argument(
        "--noise", type=float, default=0.5, metavar="X", help="judge noise, logits (%(default)s)"
    )
    sub.add_argument("--seed", type=int, default=42, metavar="N", help="default: %(default)s")
    return parser


def add_fit(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("judgments", metavar="JUDGMENTS", help="folder with stage_a.* and stage_b.*")
    sub.add_argument("--out", required=True, metavar="FIT", help="folder for the labels")
    sub.add_argument(
        "--criteria", type=names, metavar="C1,C2,…", help="default: all, in file order"
    )
    sub.add_argument("--judge", metavar="NAME", help="the judge to fit where there are several")
    sub.add_argument("--method", choices=["map"], default="map", help="default: %(default)s")
    sub.add_argument("--items", metavar="FILE|NAME", help="freeze published criterion parameters")
    sub.add_argument("--pool", metavar="POOL", help="pool folder: gives documents their order")
    sub.add_argument(
        "--optimizer",
        choices=["newton", "lbfgs"],
        default="newton",
        help="how SVI finds the MAP; both reach the same optimum (default: %(default)s)",
    )
