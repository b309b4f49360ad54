"""Log-probabilities of completions under a policy, with gradient: what every way of training is
made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lydite.model.attention import hidden_states
from lydite.model.policy import Policy
from lydite.model.shards import at_hand, inside, let_go
from lydite.ops.divergence import Rows, divergence
from lydite.ops.groups import PackedGroups, pack_groups, take
from lydite.ops.head import token_logprobs
from lydite.ops.linear import fast_products

Ids = Sequence[int]


def score(
    policy: Policy,
    prompts: Sequence[Ids],
    completions: Sequence[Sequence[Ids]],
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of completion tokens and entropies of their distributions, in nats.

    ``prompts`` are ``P`` lists of token ids, ``completions`` each one's (none empty). Both results
    are padded ``[B, T]``, zero past a completion's end; row ``b`` counts completions in order,
    group by group.

    A prompt is run once for all its completions (:mod:`lydite.ops.groups`); a model that cannot run
    on flat tokens runs it for each of them.
    """
    if not policy.flat:
        return _score_padded(policy, prompts, completions, temperature)
    packed = pack_groups(prompts, completions, policy.device)

    def run() -> tuple[Tensor, Tensor]:
        rows = _rows(policy, packed, temperature)
        logprobs, entropy = token_logprobs(
            rows.hidden, rows.weight, rows.bias, packed.targets, rows.scaling
        )
        return packed.padded(logprobs), packed.padded(entropy)

    return inside(policy.model, run)


def compare(
    policy: Policy,
    teacher: Policy,
    prompts: Sequence[Ids],
    completions: Sequence[Sequence[Ids]],
    temperature: float = 1.0,
    beta: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`score` gives, and from the same pass the divergence of the policy from a teacher
    at each completion token, ``[B, T]`` in nats, 0 past a completion's end.

    Both distributions are at ``temperature``; ``beta`` is that of
    :func:`lydite.ops.divergence.divergence_of`. The teacher has no gradient. Both must run on flat
    tokens and share their vocabulary.
    """
    packed = pack_groups(prompts, completions, policy.device)
    with torch.no_grad(), fast_products(teacher.model):
        theirs = _rows(teacher, packed, temperature)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        ours = _rows(policy, packed, temperature)
        logprobs, entropy = token_logprobs(
            ours.hidden, ours.weight, ours.bias, packed.targets, ours.scaling
        )
        apart = divergence(ours, theirs, beta)
        return packed.padded(logprobs), packed.padded(entropy), packed.padded(apart)

    return inside(policy.model, run)


def _rows(policy: Policy, packed: PackedGroups, temperature: float) -> Rows:
    """The hidden states before each completion token, and the head that they go through."""
    hidden = hidden_states(policy.model, packed.input_ids, packed.position_ids, packed.layout)
    weight, bias = policy.head
    return Rows(
        take(hidden, packed.predictor),
        at_hand(weight),
        None if bias is None else at_hand(bias),
        policy.head_scale(temperature),
    )


def _score_padded(
    policy: Policy, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]], temperature: float
) -> tuple[Tensor, Tensor]:
    """The plain way: every sequence whole, padded on the right, through the model's own forward
    pass.
    """
    padded = pad_whole(prompts, completions, policy.device)
    logits = policy.model(
        input_ids=padded.input_ids, attention_mask=padded.attention_mask, use_cache=False
    ).logits
    let_go(policy.model)
    rows = padded.before_each(logits)
    log_p = (rows.to(torch.promote_types(rows.dtype, torch.float32)) / temperature).log_softmax(-1)
    logprobs = log_p.gather(2, padded.targets[..., None]).squeeze(2)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return logprobs.masked_fill(~padded.real, 0.0), entropy.masked_fill(~padded.real, 0.0)


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """Prompts with their completions, less the last token, padded on the right ``[B, W]``.

    Each ``[B, T]``: ``targets`` are the completions' tokens, ``place`` is where the one before each
    lies, ``real`` whether there is one.
    """

    input_ids: Tensor
    attention_mask: Tensor
    place: Tensor
    targets: Tensor
    real: Tensor

    def before_each(self, states: Tensor) -> Tensor:
        """From ``[B, W, d]``, all tokens, to ``[B, T, d]``, the one before each target."""
        return states.gather(1, self.place[..., None].expand(-1, -1, states.shape[-1]))


def pad_whole(
    prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]], device: str
) -> WholeSequences:
    """Every sequence whole, for a model that cannot run on flat tokens."""
    pairs = [
        (list(p), list(c)) for p, group in zip(prompts, completions, strict=True) for c in group
    ]
    width = max(len(p) + len(c) for p, c in pairs) - 1
    longest = max(len(c) for _, c in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    attention = torch.zeros(len(pairs), width, dtype=torch.long)
    place = torch.zeros(len(pairs), longest, dtype=torch.long)
    targets = torch.zeros(len(pairs), longest, dtype=torch.long)
    real = torch.zeros(len(pairs), longest, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(pairs):
        inner, size = [*prompt, *completion[:-1]], len(completion)
        ids[row, : len(inner)] = torch.tensor(inner)
        attention[row, : len(inner)] = 1
        place[row, :size] = torch.arange(size) + len(prompt) - 1
        targets[row, :size] = torch.tensor(completion)
        real[row, :size] = True
    return WholeSequences(*(x.to(device) for x in (ids, attention, place, targets, real)))
