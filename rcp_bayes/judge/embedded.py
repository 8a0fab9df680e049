"""Judges that need no network: a lexical stand-in for real text, and one that knows the truth.

Both read the shipped prompt layout and answer with the JSON text that it asks for, so that they can
stand behind a server as well. The lexical judge is a stand-in, not an LLM: it sees words, not
meaning.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rcp_bayes.errors import InputError
from rcp_bayes.gain import pass_probability

if TYPE_CHECKING:
    from rcp_bayes.simulation import World

_QUERY = re.compile(r"<query>\n(.*?)\n</query>", re.S)
_DOCUMENT = re.compile(r'<document label="([^"]+)">\n(.*?)\n</document>', re.S)
_CRITERIA = re.compile(r"<criteria>\n(.*?)\n</criteria>", re.S)
_CRITERION_ID = re.compile(r"^(\S+) \(", re.M)
_WORD = re.compile(r"\w+")
_STOP = frozenset(
    "a an and are as at be by can did do does for from had has have how i in is it its of on or "
    "that the their there these they this to was were what when where which who why will with "
    "you your".split()
)


class EmbeddedJudge(Protocol):
    """A judge inside the process: the text of an answer to chat messages."""

    name: str

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


class Asked:
    """What a prompt in the shipped layout asks.

    Raises
    ------
    ValueError
        The text is not in that layout.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.text = "\n".join(str(message.get("content") or "") for message in messages)
        query = _QUERY.search(self.text)
        documents = _DOCUMENT.findall(self.text)
        if query is None or not documents:
            raise ValueError("the prompt has no <query> or no <document label=…> block")
        self.query: str = query.group(1)
        self.documents: dict[str, str] = dict(documents)
        criteria = _CRITERIA.search(self.text)
        self.criteria = _CRITERION_ID.findall(criteria.group(1)) if criteria else []


class LexicalJudge:
    """Scores by the words that query and document share; deterministic.

    The match is a weighted share of the query's words, each counted by BM25's saturated term
    frequency, so that it lies in [0, 1) and does not depend on the other documents. Stage A scores
    are its logit, kept within [-5, 5]. Stage B passes a criterion where the match exceeds the
    criterion's threshold; thresholds rise in rubric order, so that a document that passes a harder
    criterion passes the easier ones.
    """

    name = "lexical"

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        asked = Asked(messages)
        matches = {label: lexical_match(asked.query, d) for label, d in asked.documents.items()}
        if not asked.criteria:
            scores = {label: round(_logit_score(m), 2) for label, m in matches.items()}
            return json.dumps({"scores": scores})
        n = len(asked.criteria)
        thresholds = {name: 0.1 + 0.6 * c / max(n - 1, 1) for c, name in enumerate(asked.criteria)}
        answers = {
            label: {name: int(match > least) for name, least in thresholds.items()}
            for label, match in matches.items()
        }
        return json.dumps({"answers": answers})


def _logit_score(match: float) -> float:
    match = min(max(match, 1e-9), 1 - 1e-9)
    return max(-5.0, min(5.0, math.log(match / (1 - match)) * 1.5))


def lexical_match(query: str, document: str) -> float:
    """Weighted share of the query's words that the document has, in [0, 1)."""
    words, text = terms(query), terms(document)
    if not words:
        return 0.0
    length = 0.25 + 0.75 * len(text) / 60  # 60 words: a passage of ordinary length
    counts: dict[str, int] = {}
    for word in text:
        counts[word] = counts.get(word, 0) + 1
    # Longer words are rarer; without a collection this stands for the inverse document frequency.
    weights = {word: 1 + math.log(len(word)) for word in dict.fromkeys(words)}
    saturated = {word: counts.get(word, 0) for word in weights}
    found = sum(w * saturated[t] / (saturated[t] + 0.4 * length) for t, w in weights.items())
    return found / sum(weights.values())


@lru_cache(maxsize=4096)
def terms(text: str) -> tuple[str, ...]:
    """Words in lower case, without the commonest ones, plural and past endings taken off."""
    found = (word for word in _WORD.findall(text.lower()) if word not in _STOP)
    return tuple(_stem(word) for word in found)


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


class SimulatedJudge:
    """Answers from the known truth of a simulated world.

    Documents carry their id in the text (`write_simulated_pool`). Scores are the ability relative
    to the window's mean, with Gaussian noise; answers are drawn from the 2PL (Eq. 2). Both are a
    function of the seed and the prompt's text, so that the same question has the same answer.

    Parameters
    ----------
    ability, theta : mapping of document id to float
        On the tournament's scale and on the rubric's, logits.
    gamma, beta : (C,) arrays
        Criterion parameters, in rubric order.
    noise : float
        Standard deviation of the scores, logits.
    """

    name = "simulated"

    def __init__(
        self,
        ability: Mapping[str, float],
        theta: Mapping[str, float],
        gamma: Sequence[float],
        beta: Sequence[float],
        noise: float,
        seed: int = 0,
    ) -> None:
        self._ability, self._theta = ability, theta
        self._gamma, self._beta = np.asarray(gamma), np.asarray(beta)
        self._noise, self._seed = noise, seed

    @classmethod
    def from_folder(cls, folder: str | Path) -> SimulatedJudge:
        """The judge of a folder that `simulate` wrote.

        Raises
        ------
        InputError
            ``truth.json`` or ``truth.parquet`` is missing or not what `simulate` writes.
        """
        import pandas as pd

        place = Path(folder)
        try:
            info = json.loads((place / "truth.json").read_text(encoding="utf-8"))
            truth = pd.read_parquet(place / "truth.parquet", columns=["doc_id", "ability", "theta"])
            ids = truth["doc_id"].astype(str).tolist()
            ability, theta = (
                dict(zip(ids, truth[n].tolist(), strict=True)) for n in ("ability", "theta")
            )
            parameters = [info[n] for n in ("gamma", "beta", "noise", "seed")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputError(
                f"holds no truth that can be read ({words})",
                source=folder,
                remedy="name a folder that `rcp-bayes simulate` wrote",
            ) from None
        return cls(ability, theta, *parameters)

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        asked = Asked(messages)
        ids = [document.split()[-1] for document in asked.documents.values()]
        digest = hashlib.sha256(f"{self._seed}\n{asked.text}".encode()).digest()
        draw = np.random.default_rng(int.from_bytes(digest, "big"))
        if not asked.criteria:
            ability = np.array([self._ability[name] for name in ids])
            score = ability - ability.mean() + draw.normal(0, self._noise, len(ids))
            pairs = zip(asked.documents, np.clip(score, -5, 5).round(3).tolist(), strict=True)
            return json.dumps({"scores": dict(pairs)})
        theta = np.array([self._theta[name] for name in ids])
        p = pass_probability(theta, self._gamma, self._beta)
        answers = (draw.random(p.shape) < p).astype(int).tolist()
        rows = [dict(zip(asked.criteria, row, strict=True)) for row in answers]
        return json.dumps({"answers": dict(zip(asked.documents, rows, strict=True))})


def write_simulated_pool(world: World, folder: str | Path) -> None:
    """A pool folder whose documents carry their ids in the text, for `SimulatedJudge`."""
    from rcp_bayes.fitfolder import prepare_folder
    from rcp_bayes.io import atomic_file, write_table

    place = prepare_folder(folder)
    ids = world.truth["query_id"].drop_duplicates()
    with atomic_file(place / "queries.jsonl", "w") as file:
        file.writelines(json.dumps({"_id": q, "text": f"simulated need {q}"}) + "\n" for q in ids)
    with atomic_file(place / "corpus.jsonl", "w") as file:
        for name in world.truth["doc_id"]:
            file.write(json.dumps({"_id": name, "text": f"simulated document {name}"}) + "\n")
    write_table(world.truth[["query_id", "doc_id"]], place / "candidates.parquet")
