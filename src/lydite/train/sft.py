"""Supervised fine-tuning on worked examples: packed, loss on the answers' tokens, mean over the
step's tokens.

Examples of a micro-batch lie flat behind each other (:mod:`lydite.ops.groups`), and no token
attends to another example's: packing changes neither loss nor gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lydite.model.compute import BACKWARD, flops_per_token
from lydite.model.policy import Policy
from lydite.model.render import render_conversation, render_example
from lydite.model.scoring import score
from lydite.model.training_blocks import fast_layers
from lydite.ops.linear import fast_products
from lydite.train.batching import fill
from lydite.train.loop import StepResult, addressed_dropout
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at
from lydite.train.passes import Passes, PassesConfig
from lydite.train.ranks import ALONE, Ranks, idle_loss, matched
from lydite.types import Problem


class TextConfig(PassesConfig):
    """What all training on given text has."""

    optimizer: OptimizerConfig = Field(
        OptimizerConfig(lr=1e-5, schedule="cosine", final_lr=0.1),
        description="AdamW and its schedule.",
    )


class SFTConfig(TextConfig):
    """How much of what is shown to the model at once."""

    loss_on: Literal["answer", "last", "all"] = Field(
        "answer",
        description="`answer`: learn the worked answer, and every answer of a `conversation`; "
        "`last`: only the last answer of one; `all`: the prompt too (a base model's pretraining).",
    )


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a prompt and of what follows it; ``loss_mask``, parallel to the latter, is 1 on
    what is learned.
    """

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    loss_mask: Sequence[int]

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


def examples_of(
    policy: Policy, problems: Sequence[Problem], config: SFTConfig
) -> Sequence[Example]:
    """Worked solutions and conversations as token ids, in order. A conversation is several examples
    where the chat template does not show its turns later as they were said.

    Without conversations an example is rendered when it is first asked for, so that a large task
    does not delay the first step.

    Raises:
        UserError: one does not fit the context, or cannot be rendered; of those to come, when they
            are asked for.
    """
    if config.loss_on != "answer" or not any(m.learned for p in problems for m in p.messages):
        return _Rendered(problems, lambda problem: _examples(policy, problem, config)[0])
    return [example for problem in problems for example in _examples(policy, problem, config)]


def _examples(policy: Policy, problem: Problem, config: SFTConfig) -> list[Example]:
    worked = problem.worked or ""
    rendered = (
        render_conversation(policy, problem, worked)
        if config.loss_on == "answer"
        else [render_example(policy, problem, worked)]
    )
    found = []
    for ids, mask in rendered:
        first = 1 if config.loss_on == "all" else mask.index(1)
        bits = [1] * (len(ids) - first) if config.loss_on == "all" else mask[first:]
        found.append(Example(ids[:first], ids[first:], bits))
    return found


class _Rendered(Sequence[Example]):
    """An example for each problem, rendered once, when it is first asked for."""

    def __init__(self, problems: Sequence[Problem], render: Callable[[Problem], Example]) -> None:
        self._problems = problems
        self._render = render
        self._found: dict[int, Example] = {}

    def __len__(self) -> int:
        return len(self._problems)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if place not in self._found:
            self._found[place] = self._render(self._problems[index])
        return self._found[place]


class SFTTrainer:
    """Trains a policy on examples, a step at a time; the step number alone decides what it sees."""

    def __init__(
        self,
        policy: Policy,
        config: TextConfig,
        examples: Sequence[Example],
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """``ranks`` share each step's examples out; all are given the same."""
        self.policy = policy
        self.config = config
        self.examples = examples
        self.total = config.total_steps(len(examples))
        self.optimizer = Optimizer(policy.model, config.optimizer)
        self._seed = seed
        self._ranks = ranks
        self._passes = Passes(examples, seed)

    @property
    def finished(self) -> bool:
        """Never: examples can be shown again."""
        return False

    def batch_at(self, step: int) -> list[Example]:
        """The examples of a step."""
        return self._passes.at(step, self.config.batch_size)

    def step(self, step: int) -> StepResult:
        """One optimiser step; loss in nats per learned token, before the update."""
        began = time.perf_counter()
        batch = sorted(self.batch_at(step), key=lambda example: -example.tokens)
        learned = sum(sum(example.loss_mask) for example in batch)
        model, fast = self.policy.model, self.config.fast_blocks
        with addressed_dropout(self._seed, step), fast_products(model), fast_layers(model, fast):
            own = batch[self._ranks.index :: self._ranks.size]
            parts = fill(own, lambda e: e.tokens, self.config.tokens_per_micro_batch)
            mine = sum(self._backward(p, max(1, learned)) for p in matched(self._ranks, parts))
        self._ranks.sum_gradients(self.optimizer.masters)
        loss = sum(self._ranks.gathered(mine))
        lr = lr_at(self.config.optimizer, step, self.total)
        norm = self.optimizer.step(lr)
        tokens = sum(example.tokens for example in batch)
        rate = tokens / (time.perf_counter() - began)
        return StepResult(
            {
                "loss": loss,
                "lr": lr,
                "grad_norm": norm,
                "update_ratio": self.optimizer.update_ratio(),
                "tokens": float(tokens),
                "tokens_per_second": rate,
                "flops": (1 + BACKWARD) * flops_per_token(self.policy.model) * tokens,
            }
        )

    def _backward(self, part: Sequence[Example] | None, learned: int) -> float:
        """Adds a micro-batch's share of the step's gradient; returns its share of the loss."""
        if part is None:
            self.optimizer.backward(idle_loss(self.policy))
            return 0.0
        prompts, answers = [e.prompt_ids for e in part], [[e.token_ids] for e in part]
        logprobs, _ = score(self.policy, prompts, answers)
        masks = [torch.tensor(e.loss_mask, dtype=logprobs.dtype) for e in part]
        mask = pad_sequence(masks, batch_first=True).to(logprobs)
        loss = -(logprobs * mask).sum() / learned
        self.optimizer.backward(loss)
        return float(loss.detach())

    def state_tensors(self) -> dict[str, Tensor]:
        """See :class:`lydite.train.loop.Trainer`."""
        return self.optimizer.state_tensors()

    def state(self) -> dict[str, Any]:
        """Nothing but the step: it alone addresses the data."""
        return {}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, to the bit."""
        del state
        self.optimizer.load_state_tensors(tensors)
