"""The commands that make judgments: pool, judge, reparse, merge, serve-judge."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rcp_bayes.errors import UsageError
from rcp_bayes.terminal import progress, say, show

if TYPE_CHECKING:
    from rcp_bayes.judge.export import Exported


def run_pool(a: argparse.Namespace) -> None:
    from rcp_bayes.fitfolder import prepare_folder
    from rcp_bayes.io import read_excluded, read_qrels, read_runs, write_qrels, write_table
    from rcp_bayes.pool import build_pool

    runs = read_runs(a.runs)
    qrels = None if a.qrels is None else read_qrels(a.qrels)
    excluded = None if a.excluded is None else read_excluded(a.excluded)
    pool = build_pool(
        runs,
        k=a.k,
        kappa=a.kappa,
        qrels=qrels,
        keep_positives=a.keep_positives,
        join_judged=a.join_judged,
        excluded=excluded,
    )
    folder = prepare_folder(a.out)
    write_table(pool.candidates, folder / "candidates.parquet")
    if excluded is not None:
        write_table(excluded, folder / "excluded.parquet")
    if qrels is not None and set(qrels["dataset"]) == {"default"}:
        write_qrels(qrels, folder / "qrels.txt")
    elif qrels is not None:
        write_table(qrels, folder / "qrels.parquet")
    show(pool.report(), f"candidates in {folder}")
    if not (folder / "corpus.jsonl").exists():
        say(f"next: put queries.jsonl and corpus.jsonl (BEIR) into {folder}, then judge it")


def run_judge(a: argparse.Namespace) -> None:
    from rcp_bayes.inference.runtime import use_compilation_cache
    from rcp_bayes.io import read_pool
    from rcp_bayes.judge.client import Settings
    from rcp_bayes.judge.embedded import LexicalJudge
    from rcp_bayes.judge.material import parse_shard, pool_notes
    from rcp_bayes.judge.prompts import load_prompts
    from rcp_bayes.judge.run import judge_pool
    from rcp_bayes.judge.task import Task
    from rcp_bayes.rating import rate_a, rate_b
    from rcp_bayes.rubric import load_rubric

    if (a.judge is None) == (a.model is None):
        raise UsageError("name one judge: --judge lexical, or --base-url URL --model NAME")
    task = Task.named(
        stage=a.stage,
        preset=a.preset,
        rubric=load_rubric(a.rubric),
        prompts=load_prompts(a.prompt_a, a.prompt_b),
        budget=a.max_document_chars,
        shard=parse_shard(a.shard),
    )
    pool = read_pool(a.pool)
    notes = pool_notes(pool)
    if a.estimate:
        from rcp_bayes.judge.estimate import estimate

        prices = (a.price_in, a.price_out)
        show(*estimate(pool, task, prices=prices, answer_tokens=a.answer_tokens).lines())
        for note in notes:
            say(f"note: {note}")
        return
    use_compilation_cache()
    judge: Settings | LexicalJudge = LexicalJudge()
    if a.model is not None:
        judge = Settings(
            model=a.model,
            base_url=a.base_url,
            api_key=a.api_key,
            temperature=a.temperature,
            top_p=a.top_p,
            max_tokens=a.max_tokens,
            seed=a.seed,
            extra_body=a.extra_body,
            timeout=a.timeout,
            patience=a.patience,
        )
    try:
        done = judge_pool(
            pool,
            a.out,
            judge=judge,
            rate_a=rate_a,
            rate_b=rate_b,
            task=task,
            concurrency=a.concurrency,
            pool_digests=a.pool_digests,
            progress=progress(),
        )
    except KeyboardInterrupt:
        say(f"what was answered is kept in {a.out}: run the same command again to go on")
        raise
    counts = ", ".join(f"stage {stage}: {n} windows" for stage, n in done.windows.items())
    tokens = f"{done.prompt_tokens:,} + {done.completion_tokens:,} tokens"
    show(
        f"{done.judge}: {counts}",
        f"{done.calls} calls in {done.seconds:.1f} s ({tokens}),"
        f" {done.resumed} windows from before",
        *exported_lines(done.exported),
        f"judgments in {a.out}",
    )
    for note in notes:
        say(f"note: {note}")


def exported_lines(exported: Exported) -> list[str]:
    """Invalid windows by category, and what is not in the tables."""
    lines = []
    for stage, phases in exported.invalid.items():
        total: dict[str, int] = {}
        for categories in phases.values():
            for category, n in categories.items():
                total[category] = total.get(category, 0) + n
        if total:
            named = ", ".join(f"{name} {n}" for name, n in sorted(total.items()))
            lines.append(f"stage {stage}: {sum(total.values())} invalid windows ({named})")
    if exported.unanswered:
        lines.append(f"{exported.unanswered} windows are still open: run the same command again")
    return lines + list(exported.set_aside)


def run_reparse(a: argparse.Namespace) -> None:
    from rcp_bayes.judge.export import reparse

    done = reparse(a.judgments, pool_digests=a.pool_digests)
    show(
        f"{done.windows} windows read again: {done.changed} read otherwise"
        f" ({done.gained} became valid, {done.lost} invalid)",
        *exported_lines(done.exported),
    )


def run_merge(a: argparse.Namespace) -> None:
    from rcp_bayes.judge.merge import merge

    show(*exported_lines(merge(a.judgments, a.out)), f"merged into {a.out}")


def run_serve(a: argparse.Namespace) -> None:
    from rcp_bayes.judge.embedded import EmbeddedJudge, LexicalJudge, SimulatedJudge
    from rcp_bayes.judge.faults import Faults, Limits
    from rcp_bayes.judge.serve import serve

    judge: EmbeddedJudge = LexicalJudge()
    if a.truth is not None:
        judge = SimulatedJudge.from_folder(a.truth)
    chances = dict(a.fault)
    general = {name: chances.pop(name) for name in ("all",) if name in chances}
    timing = {"delay": a.delay, "retry_after": a.retry_after, "seed": a.seed}
    if general:
        faults = Faults.of_every_kind(general["all"], **{**chances, **timing})
    else:
        faults = Faults(**{**chances, **timing})
    limits = Limits(
        forms=tuple(a.refuse_form), form_status=a.form_status, options=tuple(a.refuse_option)
    )
    serve(
        judge,
        port=a.port,
        faults=faults,
        limits=limits,
        on_ready=lambda port: show(f"http://127.0.0.1:{port}/v1"),
    )


# ----------------------------------------------------------------------------------------- parsers


def add_pool(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--runs", nargs="+", required=True, metavar="FILE", help="first-stage runs")
    sub.add_argument("--out", required=True, metavar="POOL")
    sub.add_argument("--k", type=int, default=150, help="candidates a query (default: %(default)s)")
    sub.add_argument("--kappa", type=float, default=60, help="constant of the fusion (60)")
    sub.add_argument("--qrels", metavar="FILE")
    sub.add_argument("--excluded", metavar="FILE", help="documents that never enter")
    both = sub.add_mutually_exclusive_group()
    both.add_argument(
        "--keep-positives", action="store_true", help="missed positives replace the last candidates"
    )
    both.add_argument(
        "--join-judged", action="store_true", help="every judged document joins (TREC-DL)"
    )


def add_judge(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("pool", metavar="POOL", help="queries.jsonl, corpus.jsonl, candidates.*")
    sub.add_argument("--out", required=True, metavar="JUDGMENTS")
    sub.add_argument("--judge", choices=["lexical"], help="a judge of words, without a network")
    sub.add_argument("--base-url", metavar="URL", help="of the API, else OPENAI_BASE_URL")
    sub.add_argument("--model", metavar="NAME")
    sub.add_argument("--api-key", metavar="KEY", help="else OPENAI_API_KEY; never stored")
    sub.add_argument("--stage", choices=["a", "b", "both"], default="both")
    sub.add_argument("--preset", choices=["full", "trec-dl"], default="full")
    sub.add_argument("--rubric", metavar="FILE", help="YAML: id, name, question of each criterion")
    sub.add_argument("--prompt-a", metavar="FILE")
    sub.add_argument("--prompt-b", metavar="FILE")
    sub.add_argument("--concurrency", type=int, default=16, metavar="N", help="windows in flight")
    sub.add_argument("--shard", metavar="i/n", help="part i of n of the queries")
    sub.add_argument("--temperature", type=float, default=1.0)
    sub.add_argument("--top-p", type=float)
    sub.add_argument("--max-tokens", type=int, help="of an answer")
    sub.add_argument("--seed", type=int)
    sub.add_argument("--extra-body", type=json_object, default={}, metavar="JSON")
    sub.add_argument("--timeout", type=float, default=600, help="seconds for a call (600)")
    sub.add_argument("--patience", type=float, default=300, help="seconds a server may be silent")
    sub.add_argument("--max-document-chars", type=int, metavar="N", help="shown of a document")
    sub.add_argument(
        "--pool-digests",
        action="store_true",
        help="export answers of other prompts or settings too",
    )
    sub.add_argument("--estimate", action="store_true", help="calls, tokens and cost; asks nothing")
    sub.add_argument("--price-in", type=float, metavar="X", help="for a million prompt tokens")
    sub.add_argument("--price-out", type=float, metavar="X", help="for a million answer tokens")
    sub.add_argument("--answer-tokens", type=int, metavar="N", help="of an answer, reasoning too")


def add_reparse(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("judgments", metavar="JUDGMENTS")
    sub.add_argument("--pool-digests", action="store_true")


def add_merge(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("judgments", nargs="+", metavar="JUDGMENTS")
    sub.add_argument("--out", required=True, metavar="JUDGMENTS")


def add_serve(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--port", type=int, default=8000, help="0: any free one (default: 8000)")
    sub.add_argument("--truth", metavar="DIR", help="folder of `simulate`: the judge that knows it")
    sub.add_argument(
        "--fault",
        type=fault,
        action="append",
        default=[],
        metavar="NAME=CHANCE",
        help="e.g. truncate=0.1, rate_limit=0.1, all=0.01",
    )
    sub.add_argument("--delay", type=float, default=0.0, help="seconds before every answer")
    sub.add_argument("--retry-after", type=float, default=0.0, help="seconds that a 429 asks for")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument(
        "--refuse-form", action="append", default=[], choices=["json_schema", "json_object"]
    )
    sub.add_argument("--form-status", type=int, default=400, choices=[400, 500])
    sub.add_argument("--refuse-option", action="append", default=[], metavar="FIELD")


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object, not {text!r}")
    return value


def fault(text: str) -> tuple[str, float]:
    from rcp_bayes.judge.faults import FAULT_NAMES

    name, _, chance = text.partition("=")
    known = [n for n in FAULT_NAMES if n not in ("delay", "retry_after", "seed")] + ["all"]
    try:
        if name not in known:
            raise ValueError
        return name, float(chance)
    except ValueError:
        raise argparse.ArgumentTypeError(f"NAME=CHANCE with one of {', '.join(known)}") from None
