"""A teacher whose weights are in this process, and whether a teacher shares a student's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.scoring import Ids, score
from lydite.rollout.engine import sampling_mode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LocalTeacher:
    """Implements :class:`lydite.types.Teacher`: a policy that scores and does not change."""

    def __init__(self, policy: Policy, temperature: float = 1.0, budget: int = 8192) -> None:
        """Logits are divided by ``temperature``; ``budget`` tokens are run at once."""
        self.policy = policy
        self._temperature = temperature
        self._budget = budget

    def logprobs(
        self, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]]
    ) -> list[list[list[float]]]:
        """See :class:`lydite.types.Teacher`. A prompt is run once for its completions.

        Raises:
            UserError: a prompt and its completion are longer than the teacher's context.
        """
        self._check(prompts, completions)
        found: list[list[list[float]]] = [[[] for _ in group] for group in completions]
        with sampling_mode(self.policy):
            for part in _batches(prompts, completions, self._budget):
                rows, _ = score(
                    self.policy,
                    [prompts[group] for group, _ in part],
                    [[completions[group][i] for i in members] for group, members in part],
                    self._temperature,
                )
                told = iter(rows.tolist())
                for group, members in part:
                    for i in members:
                        found[group][i] = next(told)[: len(completions[group][i])]
        return found

    def _check(self, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]]) -> None:
        longest = max(
            (len(p) + len(c) for p, group in zip(prompts, completions, strict=True) for c in group),
            default=0,
        )
        if longest > self.policy.context:
            raise UserError(
                f"teacher: a prompt with its completion has {longest} tokens, and the teacher's "
                f"context is {self.policy.context}; lower sampling.max_tokens"
            )


def _batches(
    prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]], budget: int
) -> Iterator[list[tuple[int, list[int]]]]:
    """(prompt, its completions) by number, in runs of at most ``budget`` tokens; a longer one goes
    alone, and an empty one not at all.
    """
    part: list[tuple[int, list[int]]] = []
    used = 0
    for group, members in enumerate(completions):
        for i, ids in enumerate(members):
            if not ids:
                continue
            own = len(ids) + (0 if part and part[-1][0] == group else len(prompts[group]))
            if part and used + own > budget:
                yield part
                part, used, own = [], 0, len(ids) + len(prompts[group])
            if part and part[-1][0] == group:
                part[-1][1].append(i)
            else:
                part.append((group, [i]))
            used += own
    if part:
        yield part


def check_same_tokens(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, where: str
) -> None:
    """A token must mean the same to both.

    Raises:
        UserError: the vocabularies differ; names the first token that does. ``where`` is the field.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    odd = min(
        (token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)),
        key=lambda token: (ours.get(token, len(ours)), token),
    )
    raise UserError(
        f"{where}: its tokens are not the student's ({odd!r} is {_place(ours, odd)} for the "
        f"student, {_place(theirs, odd)} for the teacher); on-policy distillation needs the same "
        "vocabulary, method: sft does not"
    )


def _place(vocabulary: dict[str, int], token: str) -> str:
    return f"token {vocabulary[token]}" if token in vocabulary else "no token"
