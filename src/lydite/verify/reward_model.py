"""The reward that a sequence classifier gives: helpfulness, preference, whatever it was trained on.

The model is loaded with the first completion, in the process that verifies: it is trusted, and a
GPU has one copy of it. What it says is finite or no reward at all.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lydite.config import UserError
from lydite.types import Message, Outcome, Problem, Unit
from lydite.verify.function import TRIED
from lydite.verify.reward_model_config import RewardModelConfig
from lydite.verify.score import Score
from lydite.verify.spoken import part_of

if TYPE_CHECKING:
    from lydite.model.classifier import Classifier, Rated


class RewardModelReward:
    """The classifier's output, normalised, transformed and clipped, in this order.

    A completion that leaves its thinking open is ``unparseable`` and is scored as an empty answer
    where the answer is what counts: any fixed number might pay more than a bad answer.
    """

    def __init__(self, config: RewardModelConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 0
        self.unit: Unit = "all"  # how texts are padded together shows in a model's last bits
        self._config = config
        self._lock = threading.Lock()
        self._loaded: tuple[Classifier, int] | None = None

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order. ``seconds`` is each one's share of the whole.

        Raises:
            UserError: the model cannot be loaded, or refuses the messages.
        """
        begun = time.perf_counter()
        shown = [part_of(text, self._config.sees) for text in texts]
        pairs = [
            (problem.messages or (Message("user", problem.question),), text)
            for problem, text in zip(problems, shown, strict=True)
        ]
        with self._lock:
            model, label = self._model()
            rated = model.rate(pairs)
        seconds = (time.perf_counter() - begun) / max(1, len(texts))
        return [
            self._score(each, label, bool(text.strip()), seconds)
            for each, text in zip(rated, shown, strict=True)
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Loads the model and tries it on the first few problems; a reference is not needed. One
        that is yet to be trained is not tried.

        Raises:
            UserError: as :meth:`score`.
        """
        if self._config.model is None:
            return [None] * len(problems)
        tried = list(problems[:TRIED])
        scores = self.score(tried, [problem.reference or "" for problem in tried])
        faults: list[str | None] = [None] * len(problems)
        for index, score in enumerate(scores):
            faults[index] = score.detail if score.reward is None else None
        return faults

    def warm(self) -> None:
        """Loads the model, if it is there."""
        if self._config.model is not None:
            with self._lock:
                self._model()

    def close(self) -> None:
        """Lets go of the model."""
        with self._lock:
            self._loaded = None

    def _model(self) -> tuple[Classifier, int]:
        if self._loaded is None:
            config = self._config
            if config.model is None:
                raise UserError(
                    f"{self.name}.from_stage: only a run of the recipe has the model of stage "
                    f"{config.from_stage!r}; give model a folder"
                )
            # By name: this room loads without torch.
            room = importlib.import_module("lydite.model.classifier")
            spec = room.ClassifierSpec(
                path=config.model,
                tokenizer=config.tokenizer,
                layout=config.layout,
                template=config.template,
                max_tokens=config.max_tokens,
                batch_tokens=config.batch_tokens,
                dtype=config.dtype,
                device=config.device,
                field=self.name,
            )
            model: Classifier = room.Classifier(spec)
            self._loaded = model, label_of(config.label, model.labels, self.name)
        return self._loaded

    def _score(self, rated: Rated, label: int, said: bool, seconds: float) -> Score:
        reward = reward_of(rated.logits, label, self._config)
        if reward is None:
            detail = f"the reward model gives {rated.logits[label]}"
            return Score(Outcome.CRASHED, None, detail=detail, seconds=seconds)
        outcome = Outcome.CORRECT if reward > self._config.correct_above else Outcome.WRONG
        if not said:
            return Score(Outcome.UNPARSEABLE, reward, detail="nothing to score", seconds=seconds)
        cut = [
            f"{count} characters of the {what} were cut"
            for what, count in (
                ("prompt", rated.cut_prompt),
                ("completion", rated.cut_completion),
            )
            if count
        ]
        return Score(outcome, reward, detail="; ".join(cut), seconds=seconds)


def label_of(wanted: int | str | None, labels: Sequence[str], name: str) -> int:
    """The number of the output that is the reward.

    Raises:
        UserError: there is no such output, or none was named and there are several.
    """
    if wanted is None and len(labels) == 1:
        return 0
    if isinstance(wanted, int) and 0 <= wanted < len(labels):
        return wanted
    if isinstance(wanted, str) and wanted in labels:
        return labels.index(wanted)
    known = ", ".join(f"{number} ({label})" for number, label in enumerate(labels))
    what = "it has several outputs" if wanted is None else f"no output {wanted!r}"
    raise UserError(f"{name}.label: {what}; name one of {known}")


def reward_of(logits: Sequence[float], label: int, config: RewardModelConfig) -> float | None:
    """The reward of a model's outputs; ``None`` if it is not finite."""
    values = [(value - config.center) / config.scale for value in logits]
    if not all(map(math.isfinite, values)):
        return None
    value = values[label]
    if config.transform == "sigmoid":
        value = _sigmoid(value)
    elif config.transform == "softmax":
        greatest = max(values)
        shares = [math.exp(each - greatest) for each in values]
        value = shares[label] / sum(shares)
    low, high = config.clip or (-math.inf, math.inf)
    return min(high, max(low, value))


def _sigmoid(value: float) -> float:
    """Without overflow for large negative values."""
    power = math.exp(-abs(value))
    return 1 / (1 + power) if value >= 0 else power / (1 + power)
