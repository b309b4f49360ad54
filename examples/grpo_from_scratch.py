"""The whole of GRPO in one file: a tiny model learns, from right and wrong alone, to think first.

    python examples/grpo_from_scratch.py            # a few minutes on two CPU cores
    python examples/grpo_from_scratch.py --smoke    # a few seconds: does it run?

*Base*: a Llama of 0.9M parameters reads worked solutions of mixed quality and loose form.
*Cold start*: some examples teach it ``<think>…</think><answer>…</answer>``; most only guess.
*GRPO*: it answers each problem eight times, and what beats the group's average becomes likelier.
*Evaluation*: problems that no stage has seen, before and after. The base knew the careful style all
along: the reward selects it, then sharpens its steps.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lydite.tasks.generated import BASE, COLD_START, KINDS, check_disjoint, generate, vocabulary
from lydite.types import Problem


@dataclass(frozen=True)
class Settings:
    """Every number of the run. Lengths are steps, never seconds: a slow machine gets as far."""

    seed: int = 0
    width: int = 128
    layers: int = 4
    base_steps: int = 1200
    base_lr: float = 3e-3
    cold_steps: int = 100
    cold_lr: float = 1e-3
    batch: int = 32
    rl_steps: int = 150
    rl_lr: float = 3e-4
    prompts: int = 24
    group: int = 8
    updates: int = 1
    max_new: int = 40
    heldout: int = 300


SMOKE = Settings(
    width=32, layers=2, base_steps=3, cold_steps=2, rl_steps=2, prompts=3, max_new=12, heldout=6
)
HEAD = 32  # numbers per attention head


@dataclass
class Answer:
    """A prompt and a completion, in tokens; if sampled, with each token's log-probability then."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    advantage: float = 0.0


def build_tokenizer() -> Tokenizer:
    """One token per entry of the vocabulary: digits, letters, a few words, and the tags."""
    numbered = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
    longest_first = "|".join(re.escape(t) for t in sorted(numbered, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(longest_first), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


TOKENIZER = build_tokenizer()
PAD, EOS = vocabulary().index("<pad>"), vocabulary().index("<eos>")


def ask(problem: Problem) -> list[int]:
    """The prompt, chat template applied."""
    return TOKENIZER.encode(f"<bos><user>{problem.question}<assistant>").ids


def build_model(s: Settings) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=s.width,
        intermediate_size=3 * s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.width // HEAD,
        tie_word_embeddings=True,
        initializer_range=0.06,  # 0.02 is for wide models; a narrow one learns faster from more
    )
    return LlamaForCausalLM(config)


def descend(adam: torch.optim.AdamW, loss: Tensor, lr: float) -> None:
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
    adam.param_groups[0]["lr"] = lr
    adam.step()


def collate(answers: Sequence[Answer]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids ``[B, T]``; for all but the first: completion mask, old log-probs, advantages."""
    length = max(len(a.prompt) + len(a.tokens) for a in answers)
    ids = torch.full((len(answers), length), PAD)
    mask, old, advantage = torch.zeros(3, len(answers), length)
    for row, a in enumerate(answers):
        start, end = len(a.prompt), len(a.prompt) + len(a.tokens)
        ids[row, :end] = torch.tensor(a.prompt + a.tokens)
        mask[row, start:end] = 1
        advantage[row, start:end] = a.advantage
        old[row, start:end] = torch.tensor(a.logprobs or 0.0)
    return ids, mask[:, 1:], old[:, 1:], advantage[:, 1:]


def token_logprobs(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Log-probability of every token but the first, ``[B, T-1]``."""
    # Padding is on the right, where causal attention never looks: no attention mask is needed.
    logits: Tensor = model(ids[:, :-1], use_cache=False).logits
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def imitate(model: LlamaForCausalLM, s: Settings, problems: list[Problem], peak_lr: float) -> None:
    """Supervised learning: makes worked solutions likelier. Prompts are read, not learned."""
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    answers = [Answer(ask(p), TOKENIZER.encode(f"{p.worked}<eos>").ids) for p in problems]
    steps = len(answers) // s.batch
    for step in range(steps):
        ids, mask, _, _ = collate(answers[step * s.batch : (step + 1) * s.batch])
        loss = -(token_logprobs(model, ids) * mask).sum() / mask.sum()
        lr = peak_lr * min(1, (step + 1) / 50, 1.25 * (1 - step / steps))
        descend(adam, loss, lr)
        if step % 100 == 0 or step == steps - 1:
            print(f"  step {step:4d}   loss {loss.item():.3f}")


class KVCache:
    """Keys and values in one block made beforehand, so that a token costs no copy of the others."""

    def __init__(self, s: Settings, rows: int, length: int) -> None:
        self.keys, self.values = torch.zeros(2, s.layers, rows, s.width // HEAD, length, HEAD)
        self.used = 0

    def update(self, k: Tensor, v: Tensor, layer: int, **_: object) -> tuple[Tensor, Tensor]:
        """Called by each attention layer of the model: stores the new, returns all."""
        end = self.used + k.shape[2]
        self.keys[layer, :, :, self.used : end] = k
        self.values[layer, :, :, self.used : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keeps these rows, in this order: copies a prompt to its samples, drops the finished."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


@torch.inference_mode()
def sample(
    model: LlamaForCausalLM, s: Settings, prompts: list[list[int]], group: int, greedy: bool = False
) -> list[Answer]:
    """``group`` completions of each prompt, neighbours in the list."""
    width = max(len(prompt) for prompt in prompts)
    # Padding is on the left here, so that every row writes its next token into the same column.
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    seen = ids != PAD
    position = (seen.cumsum(-1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    itself = torch.eye(width, dtype=torch.bool)  # a row of padding must look at something
    cache = KVCache(s, len(prompts), width + s.max_new)

    def next_logits(ids: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        logits: Tensor = model(ids, attention_mask=mask, position_ids=position, cache=cache).logits
        cache.used += ids.shape[1]
        return logits[:, -1]

    # A prompt is read once, however many completions are drawn from it.
    logits = next_logits(ids, (seen[:, None, None] & causal) | itself, position)
    copies = torch.arange(len(prompts)).repeat_interleave(group)
    cache.select(copies)
    logits, seen, position = logits[copies], seen[copies], position[copies, -1:]
    answers = writing = [Answer(prompts[row], []) for row in copies.tolist()]
    for _ in range(s.max_new):
        logprobs = logits.log_softmax(-1)
        drawn = logprobs.argmax(-1, True) if greedy else torch.multinomial(logprobs.exp(), 1)
        chosen = logprobs.gather(-1, drawn)
        for a, token, logprob in zip(writing, drawn.tolist(), chosen.tolist(), strict=True):
            a.tokens += token
            a.logprobs += logprob
        going = (drawn != EOS).squeeze(1)
        if not going.any():
            break
        if not going.all():
            writing = [a for a in writing if a.tokens[-1] != EOS]
            cache.select(going.nonzero().squeeze(1))
            drawn, seen, position = drawn[going], seen[going], position[going]
        seen = torch.cat([seen, torch.ones_like(drawn, dtype=torch.bool)], dim=1)
        position = position + 1
        logits = next_logits(drawn, seen[:, None, None], position)
    return answers


def reward(problem: Problem, answer: Answer) -> float:
    """1 for the right answer in the right form, else 0. Nobody reads the thinking.

    So a wrong trace that ends in the right answer is paid too: the price of checking only the end.
    """
    form = r"<think>[^<]*</think><answer>([^<]*)</answer><eos>"
    match = re.fullmatch(form, TOKENIZER.decode(answer.tokens, skip_special_tokens=False))
    return float(match is not None and match[1] == problem.reference)


def group_advantages(rewards: Tensor) -> Tensor:
    """How far above its group's mean each reward is, in population standard deviations, ``[P, G]``.

    The group is the baseline, so no critic is needed. Where all are equal, all are zero.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)


def surrogate(policy: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """PPO's clipped objective as a loss, averaged over tokens.

    Tokens that have moved far since they were drawn stop learning. The upper limit is looser, so
    that rare good ones may rise. It acts from ``--updates 2`` on: with one, the ratio is still 1.
    """
    ratio = (policy - old).exp()
    clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
    return -(torch.minimum(ratio * advantage, clipped * advantage) * mask).sum() / mask.sum()


def reinforce(model: LlamaForCausalLM, s: Settings, problems: list[Problem]) -> None:
    """Sample, check, compare within the group, update; again."""
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(s.rl_steps):
        asked = problems[step * s.prompts : (step + 1) * s.prompts]
        answers = sample(model, s, [ask(p) for p in asked], s.group)
        rewards = torch.tensor([reward(asked[i // s.group], a) for i, a in enumerate(answers)])
        advantages = group_advantages(rewards.view(s.prompts, s.group)).flatten()
        for a, advantage in zip(answers, advantages.tolist(), strict=True):
            a.advantage = advantage
        # All right or all wrong: the group says nothing, and would only dilute the mean.
        telling = [a for a in answers if a.advantage != 0]
        lr = s.rl_lr * min(1, (step + 1) / 10, 2 * (1 - step / s.rl_steps))
        for part in range(min(s.updates, len(telling))):
            ids, mask, old, advantage = collate(telling[part :: s.updates])
            loss = surrogate(token_logprobs(model, ids), old, advantage, mask)
            descend(adam, loss, lr)
        if step % 10 == 0 or step == s.rl_steps - 1:
            length = sum(len(a.tokens) for a in answers) / len(answers)
            print(f"  step {step:4d}   reward {rewards.mean():.3f}   length {length:.1f}")


def evaluate(model: LlamaForCausalLM, s: Settings, problems: list[Problem], name: str) -> float:
    """Prints accuracy for each kind; returns that of answers sampled at temperature 1."""
    for greedy in (True, False):
        answers = sample(model, s, [ask(p) for p in problems], 1, greedy)
        right = [reward(p, a) for p, a in zip(problems, answers, strict=True)]
        line = f"  {name} {'greedy ' if greedy else 'sampled'}"
        for kind in KINDS:
            own = [r for p, r in zip(problems, right, strict=True) if p.tag == kind]
            line += f"   {kind} {100 * sum(own) / max(1, len(own)):5.1f}%"
        print(f"{line}   all {100 * sum(right) / len(right):5.1f}%")
    return sum(right) / len(right)


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Runs everything; returns held-out accuracy before and after reinforcement learning."""
    parser = argparse.ArgumentParser(description="GRPO from scratch, on a tiny model.")
    parser.add_argument("--smoke", action="store_true", help="a run of a few seconds")
    for each in fields(Settings):
        parser.add_argument("--" + each.name.replace("_", "-"), type=type(each.default))
    given = {k: v for k, v in vars(parser.parse_args(argv)).items() if v is not None}
    s = replace(SMOKE if given.pop("smoke") else Settings(), **given)

    torch.manual_seed(s.seed)
    model, kinds = build_model(s), {"add": 0.44, "sum": 0.28, "count": 0.28}  # add is hardest
    # Fresh problems for every stage, and the same held-out ones for every seed.
    base = generate(kinds, s.base_steps * s.batch, 3 * s.seed, "train", BASE)
    cold = generate(kinds, s.cold_steps * s.batch, 3 * s.seed + 1, "train", COLD_START)
    problems = generate(kinds, s.rl_steps * s.prompts, 3 * s.seed + 2, "train")
    heldout = generate(list(KINDS), s.heldout, 0, "heldout")
    print(check_disjoint([*base, *cold, *problems], heldout))
    print("Base: reads worked solutions, good and bad")
    imitate(model, s, base, s.base_lr)
    print("Cold start: learns the form of an answer")
    imitate(model, s, cold, s.cold_lr)
    before = evaluate(model, s, heldout, "before")
    print("GRPO: learns what pays")
    reinforce(model, s, problems)
    after = evaluate(model, s, heldout, "after ")
    return before, after


if __name__ == "__main__":
    main()
