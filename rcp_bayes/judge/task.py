"""What is to be judged, and how: stages, schedule, rubric, prompts, budget, shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rcp_bayes.errors import UsageError
from rcp_bayes.judge.asking import Judge
from rcp_bayes.judge.prompts import BUDGET_CHARACTERS, Prompts, load_prompts
from rcp_bayes.judge.stored import Configuration
from rcp_bayes.rubric import DEFAULT_RUBRIC, Rubric
from rcp_bayes.schedule import FULL, PRESETS, Schedule, Stage

STAGES: dict[str, tuple[Stage, ...]] = {"a": ("a",), "b": ("b",), "both": ("a", "b")}


@dataclass(frozen=True)
class Task:
    """What is to be judged and how, apart from the judge.

    Attributes
    ----------
    stages : tuple of {"a", "b"}
    schedule : Schedule
    rubric : Rubric
    prompts : Prompts
    budget : int
        Characters of a document that are shown.
    shard : (int, int), optional
        Part i of n, 1-based.
    """

    stages: tuple[Stage, ...] = ("a", "b")
    schedule: Schedule = FULL
    rubric: Rubric = DEFAULT_RUBRIC
    prompts: Prompts = field(default_factory=load_prompts)
    budget: int = BUDGET_CHARACTERS
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.budget < 100:
            raise UsageError("a document needs at least 100 characters (--max-document-chars)")

    @classmethod
    def named(cls, *, stage: str = "both", preset: str = "full", **more: Any) -> Task:
        """A task by the words of the command line; what is None takes its default.

        Raises
        ------
        UsageError
            An unknown stage or preset.
        """
        for name, value, known in (("stage", stage, STAGES), ("preset", preset, PRESETS)):
            if value not in known:
                raise UsageError(f"--{name} {value}: choose {' or '.join(known)}")
        given = {name: value for name, value in more.items() if value is not None}
        return cls(stages=STAGES[stage], schedule=PRESETS[preset], **given)

    def configuration(self, stage: Stage, judge: Judge) -> Configuration:
        """What the answers of a stage are stored under; the other stage's schedule is left out."""
        other = "_b" if stage == "a" else "_a"
        only_a = ("mirror", "adaptive_batches", "adaptive", "shrink")
        schedule = {
            name: value
            for name, value in self.schedule.describe().items()
            if not name.endswith(other) and not (stage == "b" and name in only_a)
        }
        return Configuration(
            stage,
            judge.name,
            self.prompts.text(stage),
            self.rubric.text if stage == "b" else None,
            {**judge.describe(), "document_characters": self.budget},
            schedule,
        )
