"""The words that rooms hand to each other. Data only: no behaviour beyond what a field implies, no
torch.

Dimensions, used everywhere: ``P`` prompts, ``G`` completions per prompt, ``B = P·G`` sequences,
``T`` tokens, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. ``learned`` marks an assistant's before the last that is to be imitated too,
    as ``Problem.worked`` is: an answer of a conversation, not an example in a prompt.
    """

    role: Role
    content: str
    learned: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt with what is needed to check an answer to it.

    ``id`` is unique within its task and stable across runs (sampling noise is addressed by it).
    ``question`` is the bare text from the data, ``messages`` what the model is shown (prompt
    template and system prompt applied, chat template not yet). ``reference`` is the gold answer, if
    there is one. ``worked`` is a solution in the data to imitate (SFT), if there is one, and
    ``rejected`` a worse one than that (DPO). ``fields`` holds every other column. ``thinking`` is
    the hard switch: ``enable_thinking`` of the chat template, the model's setting where ``None``.
    """

    id: str
    question: str
    messages: tuple[Message, ...]
    reference: str | None = None
    tag: str = ""
    worked: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    rejected: str | None = None
    thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How long a completion may think: a thought that is still open after so many tokens is ended
    by force, and the answer follows.

    ``tokens`` is one number, or several from which one is drawn: for each request, or with
    ``per_sample`` for each of its samples. ``phrase`` is said before the closing tag; ``None``: a
    sentence of ours, or nothing where the tokenizer cannot write that.
    """

    tokens: tuple[int, ...] | range
    per_sample: bool = False
    phrase: str | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest; of a range, its ends tell."""
        tokens = self.tokens
        ends = (tokens[0], tokens[-1]) if isinstance(tokens, range) else tokens
        return min(ends), max(ends)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one completion is drawn. ``temperature=0`` is greedy. ``top_p=1``, ``top_k=0``,
    ``min_p=0`` are off. ``max_tokens`` counts all tokens of the completion, injected ones too.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    thinking: ThinkingBudget | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """``samples`` completions of one prompt, numbered from ``first_sample``.

    ``step`` is the policy step; with the run seed, the problem id, the sample number and the
    position it addresses the sampling noise, so the same request always draws the same noise.
    ``position`` is that of the first token: what goes on with a completion of so many tokens draws
    the noise that it would have drawn.
    """

    problem_id: str
    prompt_ids: tuple[int, ...]
    samples: int
    params: SamplingParams
    step: int = 0
    first_sample: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Thought:
    """What a completion made of its thinking budget: the budget, and the tokens between the tags
    (0 where it never thought), both in tokens. ``cut``: it was ended by force.
    """

    budget: int
    tokens: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer.

    ``token_ids``, ``logprobs`` and ``loss_mask`` are parallel; the end-of-text token, when sampled,
    is the last of them. ``logprobs`` are the *behaviour* log-probabilities in nats: of the
    temperature-scaled distribution before top-k/top-p/min-p truncation, so that they can be
    compared with the learner's. ``loss_mask`` is 0 on tokens that the model did not sample, and
    their log-probability is 0: they were certain. ``text`` is decoded from ``token_ids``, special
    tokens other than the ending one kept. ``versions`` is the first and last policy version that
    sampled it, and ``changes`` are those in between, as (token, version): from that token on, that
    version; ``thought`` is there where it had a thinking budget. ``finish`` is ``abort`` where an
    engine was interrupted: what there is so far, to be gone on with.
    """

    problem_id: str
    sample: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    finish: FinishReason
    text: str
    versions: tuple[int, int] = (0, 0)
    thought: Thought | None = None
    changes: tuple[tuple[int, int], ...] = ()

    @property
    def sampled(self) -> int:
        """Tokens that the model sampled: its length, whatever was injected."""
        return sum(self.loss_mask)

    @property
    def version_runs(self) -> list[tuple[int, int]]:
        """(version, sampled tokens) of each stretch that one version sampled, in order."""
        starts = [(0, self.versions[0]), *self.changes]
        ends = [*(token for token, _ in self.changes), len(self.token_ids)]
        return [
            (version, sum(self.loss_mask[start:end]))
            for (start, version), end in zip(starts, ends, strict=True)
        ]


class Outcome(StrEnum):
    """What checking an answer came to. The last two are our failures, never the model's: their
    reward is ``None``.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNGRADABLE = "ungradable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's word on one completion. ``reward`` is finite, or ``None`` when it could not be
    decided.

    ``answer`` is what was read as the final answer; ``parts`` the rewards that were combined, by
    name, unweighted; ``detail`` one plain sentence for a person. ``seconds`` were spent on it, 0
    where nobody counted; two verdicts that differ in nothing else are equal.
    """

    outcome: Outcome
    reward: float | None
    answer: str | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one problem with their verdicts, in sample order."""

    problem: Problem
    completions: Sequence[Completion]
    verdicts: Sequence[Verdict]

    @property
    def rewards(self) -> list[float]:
        """``[G]``; NaN where the verifier could not decide."""
        return [float("nan") if v.reward is None else v.reward for v in self.verdicts]


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One completion as the learner sees it. ``advantage`` is one number for all of its tokens, or
    one for each.

    Where a critic judged it, ``values`` and ``returns`` have a number for each token: what the
    critic said before the update, and what it should have said. Else they are empty.
    """

    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    behaviour: Sequence[float]
    advantage: float | Sequence[float]
    values: Sequence[float] = ()
    returns: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """A prompt and the completions that share it."""

    prompt_ids: Sequence[int]
    sequences: Sequence[TrainSequence]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """All that one optimiser step trains on. ``temperature`` is the one that the completions were
    sampled at.
    """

    groups: Sequence[TrainGroup]
    temperature: float = 1.0


class Engine(Protocol):
    """Whatever samples completions: in-process, a vLLM server, a fake in a test.

    It keeps thinking budgets, or is asked through
    :func:`lydite.rollout.budget_calls.generate_within`, which does.
    """

    version: int

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """The completions of each request, in request and sample order."""
        ...


OnCompletion = Callable[[int, Completion], None]
"""Told the number of a request and a completion of it that has just ended, in the order in which
completions end. What it raises ends the call.
"""


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that hands completions over as they end, while others are still decoded."""

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion
    ) -> list[list[Completion]]:
        """As :meth:`Engine.generate`, which returns the same; ``on_completion`` hears of each
        before that.
        """
        ...


@runtime_checkable
class BusyEngine(StreamingEngine, Protocol):
    """An engine that knows whether it leaves anything of this machine to work beside it."""

    @property
    def busy(self) -> bool:
        """Whether sampling keeps every processor at work, each waiting for the others."""
        ...


@runtime_checkable
class InterruptibleEngine(Engine, Protocol):
    """An engine that hands over what it has when it is told to."""

    def interrupt(self) -> None:
        """The call under way in another thread, or else the next one, ends soon: completions that
        have not ended are returned as they are, with finish ``abort``, some of them empty.
        ``on_completion`` hears of none of these.
        """
        ...


class Teacher(Protocol):
    """Whatever scores tokens that another model sampled: weights in this process, or a server."""

    def logprobs(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[list[float]]]:
        """The log-probability in nats of every token of ``completions`` (a list for each prompt),
        given the prompt and the tokens before it.
        """
        ...


class Verifier(Protocol):
    """Whatever scores completions. Never raises for what a model wrote."""

    def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        """One verdict per pair, in order. Safe to call from any thread."""
        ...

    def close(self) -> None:
        """Ends the worker processes, if there are any."""
        ...


Unit = Literal["completion", "problem", "all"]
"""The least that a verifier must see in one call for its verdicts to be the same: one completion,
all completions of a problem, or all that there are. From small to large.
"""


@runtime_checkable
class PiecemealVerifier(Verifier, Protocol):
    """A verifier that says how it may be asked while completions are still being sampled."""

    @property
    def unit(self) -> Unit:
        """``all`` also where asking early gains nothing."""
        ...
