"""Draws tokens with noise that is addressed, not streamed.

The noise for a token is a pure function of (run seed, problem id, sample number, policy step,
position), so what is sampled does not depend on batch order, on which worker sampled it, or on a
restart. Each address of a row is hashed once to 64 bits (BLAKE2b); a counter hash over the position
(the finaliser of SplitMix64, Steele et al., OOPSLA 2014) then gives one uniform a token, and the
token is the inverse of the cumulative distribution at it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lydite.types import SamplingParams

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64: the increment of SplitMix64
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_BLOCK = 512
"""Widths up to this are summed in one pass; wider vocabularies first find the block, then the token
in it.
"""
_TOP_P_CANDIDATES = (64, 1024)
"""Top-p sorts only this many of the likeliest tokens of a row: more, and in the end the whole
vocabulary, only of those rows where they are not enough.
"""
_CHUNK = 1 << 18
"""On a CPU this many logits are drawn from at once: 1 MB of float32 stays in the second cache, and
what is freed and taken again is never large enough to go back to the system and return as fresh
pages.
"""


def address_key(seed: int, problem_id: str, sample: int, step: int, position: int = 0) -> int:
    """64 bits (as a signed integer) that address the noise of one completion, from ``position``
    on: position ``t`` of the key is position ``position + t`` of the completion.
    """
    text = f"{seed}\x1f{step}\x1f{sample}\x1f{problem_id}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    key = (key + position * _GOLDEN) % 2**64
    return key - 2**64 if key >= 2**63 else key


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) for each pair: ``keys`` and ``positions`` are int64 ``[R]``, the result
    float64 ``[R]``.

    Position ``t`` is the ``t``-th output of the SplitMix64 stream that starts at the key; 53 of its
    bits are used.
    """
    x = keys + (positions + 1) * _GOLDEN  # int64 arithmetic wraps, which is arithmetic modulo 2^64
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """A logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling settings of ``R`` rows, each ``[R]``. The flags say what can be skipped, so that no
    step asks the device.

    ``temperature`` is 1 on greedy rows: a log-probability at temperature 0 would be 0 or minus
    infinity.
    """

    temperature: Tensor
    greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    any_scaled: bool
    any_greedy: bool
    all_greedy: bool
    max_top_k: int
    any_full_k: bool
    any_top_p: bool
    all_top_p: bool
    any_min_p: bool

    @staticmethod
    def of(params: Sequence[SamplingParams], device: str | torch.device) -> RowSampling:
        """Packs the settings of each row."""
        greedy = [p.temperature == 0 for p in params]

        def floats(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        return RowSampling(
            temperature=floats([p.temperature or 1.0 for p in params]),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.long, device=device),
            top_p=floats([p.top_p for p in params]),
            min_p=floats([p.min_p for p in params]),
            any_scaled=any(p.temperature not in (0, 1) for p in params),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            max_top_k=max((p.top_k for p in params), default=0),
            any_full_k=any(p.top_k == 0 for p in params),
            any_top_p=any(p.top_p < 1 for p in params),
            all_top_p=all(p.top_p < 1 for p in params),
            any_min_p=any(p.min_p > 0 for p in params),
        )

    def first(self, rows: int) -> RowSampling:
        """The same settings for the first ``rows`` rows only."""
        return self.part(0, rows)

    def part(self, start: int, end: int) -> RowSampling:
        """The same settings for rows ``start`` to ``end`` only."""
        parts = {
            name: getattr(self, name)[start:end]
            for name in ("temperature", "greedy", "top_k", "top_p", "min_p")
        }
        return replace(self, **parts)


def draw(logits: Tensor, noise: Tensor, sampling: RowSampling) -> tuple[Tensor, Tensor]:
    """Chooses one token a row.

    ``logits`` is float32 ``[R, V]``, ``noise`` float64 ``[R]`` in [0, 1). Returns token ids ``[R]``
    and their log-probabilities ``[R]`` in nats, of the temperature-scaled distribution *before*
    truncation. Truncation is top-k, then top-p of what top-k left, then min-p, as in Transformers;
    a tie with the last token kept is kept.
    """
    rows, width = logits.shape
    step = max(1, _CHUNK // width)
    if logits.device.type != "cpu" or rows <= step:
        return _draw(logits, noise, sampling)
    parts = [
        _draw(logits[i : i + step], noise[i : i + step], sampling.part(i, i + step))
        for i in range(0, rows, step)
    ]
    ids, logprobs = zip(*parts, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def _draw(logits: Tensor, noise: Tensor, sampling: RowSampling) -> tuple[Tensor, Tensor]:
    scaled = logits / sampling.temperature[:, None] if sampling.any_scaled else logits
    if sampling.all_greedy or logits.shape[1] <= _BLOCK:
        log_p = scaled.log_softmax(1)
        if sampling.all_greedy:
            chosen = log_p.argmax(1)
            return chosen, log_p.gather(1, chosen[:, None]).squeeze(1)
        weights, log_sum = log_p.exp(), None
    else:
        # One pass of exponentials: draws need no normalisation, log-probabilities only the sum.
        log_p = scaled - scaled.amax(1, keepdim=True)
        weights = log_p.exp()
        log_sum = weights.sum(1).log()
    chosen = inverse_cdf(truncate(weights, sampling), noise)
    if sampling.any_greedy:
        chosen = torch.where(sampling.greedy, log_p.argmax(1), chosen)
    found = log_p.gather(1, chosen[:, None]).squeeze(1)
    return chosen, found if log_sum is None else found - log_sum


def truncate(weights: Tensor, sampling: RowSampling) -> Tensor:
    """Weights ``[R, V]``, each row probabilities times any factor, with the tokens that top-k,
    top-p and min-p exclude set to 0.
    """
    if sampling.max_top_k:
        weights = _keep_from(weights, _top_k_threshold(weights, sampling))
    if sampling.any_top_p:
        weights = _keep_from(weights, _top_p_threshold(weights, sampling))
    if sampling.any_min_p:
        weights = _keep_from(weights, weights.amax(1) * sampling.min_p)
    return weights


def _keep_from(weights: Tensor, threshold: Tensor) -> Tensor:
    return weights.masked_fill(weights < threshold[:, None], 0.0)


def _top_k_threshold(weights: Tensor, sampling: RowSampling) -> Tensor:
    """The k-th largest weight of each row, 0 where top-k is off."""
    width = weights.shape[1]
    top = weights.topk(min(sampling.max_top_k, width), dim=1).values
    place = sampling.top_k.clamp(1, top.shape[1]) - 1
    threshold = top.gather(1, place[:, None]).squeeze(1)
    if not sampling.any_full_k:
        return threshold
    return threshold.masked_fill(sampling.top_k == 0, 0.0)


def _top_p_threshold(weights: Tensor, sampling: RowSampling) -> Tensor:
    """The smallest weight in the least set of likeliest tokens whose share reaches ``top_p``; 0
    where it is off. Asks the device once, whether the fewest candidates were enough, if they are.
    """
    width, top_p = weights.shape[1], sampling.top_p
    first, *more = (*(n for n in _TOP_P_CANDIDATES if n < width), width)
    threshold, enough = _last_kept(weights, top_p, first)
    if not sampling.all_top_p:
        off = top_p >= 1
        threshold, enough = threshold.masked_fill(off, 0.0), enough | off
    for count in more:
        rows = (~enough).nonzero().squeeze(1)
        if not len(rows):
            break
        some = weights if len(rows) == len(weights) else weights[rows]
        threshold[rows], enough[rows] = _last_kept(some, top_p[rows], count)
    return threshold


def _last_kept(weights: Tensor, top_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Among the ``count`` likeliest tokens of each row the last that is kept, its weight ``[R]``,
    and whether they reach ``top_p`` ``[R]``.
    """
    target = weights.sum(1, dtype=torch.float64) * top_p
    top = weights.topk(count, dim=1).values
    reached = top.cumsum(1, dtype=torch.float64) >= target[:, None]
    enough = reached[:, -1]
    # A row that rounding keeps from ever reaching its target keeps everything it has.
    last = torch.where(enough, reached.int().argmax(1), count - 1)
    return top.gather(1, last[:, None]).squeeze(1), enough


def inverse_cdf(weights: Tensor, noise: Tensor) -> Tensor:
    """The token whose share of the cumulative weight holds ``noise``: ``[R, V]`` and ``[R]`` to ids
    ``[R]``.

    Weights need no normalisation. A token of zero weight is never chosen, whatever rounding does.
    """
    width = weights.shape[1]
    if width <= _BLOCK:
        cumulative = weights.cumsum(1, dtype=torch.float64)
        return _search(cumulative, noise * cumulative[:, -1])
    whole = width // _BLOCK * _BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(2, dtype=torch.float64)
    if whole < width:
        sums = torch.cat(
            [sums, weights[:, whole:].sum(1, dtype=torch.float64, keepdim=True)], dim=1
        )
    cumulative = sums.cumsum(1)
    target = noise * cumulative[:, -1]
    block = _search(cumulative, target)
    before = (cumulative - sums).gather(1, block[:, None]).squeeze(1)
    columns = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inner = weights.gather(1, columns.clamp(max=width - 1)).masked_fill(columns >= width, 0.0)
    return block * _BLOCK + _search(inner.cumsum(1, dtype=torch.float64), target - before)


def _search(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first column whose cumulative weight exceeds the target, held to columns where the weight
    grows.
    """
    found = torch.searchsorted(cumulative, target[:, None].clamp(min=0.0), right=True)
    # Block sums and running sums may round apart: the last column that adds weight is then right.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(found, last).squeeze(1).clamp(max=cumulative.shape[1] - 1)
