"""Training a reward model: what a step is, and that what is saved says what was trained."""

import pytest
import torch
from tiny_policy import tiny_model

from lydite.config import UserError, validate
from lydite.model.classifier import Classifier, ClassifierSpec
from lydite.model.loading import load_policy
from lydite.model.saving import save_scorer
from lydite.model.scorer import new_scorer
from lydite.train.optimizer import OptimizerConfig
from lydite.train.reward import RatedPair, RewardTrainer, RewardTraining
from lydite.types import Message

PROMPTS = [(Message("user", f"say {word}"),) for word in ("one", "two", "three", "four")]
ANSWERS = [("yes please", "no"), ("yes", "no no no"), ("yes sir", "no way out"), ("yes", "no")]


def scorer(seed=0, spec=None, **changes):
    return new_scorer(
        load_policy(tiny_model(**changes), "cpu", seed), seed, spec or ClassifierSpec("")
    )


def pairs(of):
    return [
        RatedPair(str(n), *(of.encoder.encode(prompt, text) for text in both))
        for n, (prompt, both) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
    ]


def config(**changes):
    values = {"steps": 20, "batch_size": 4, "optimizer": {"lr": 3e-3}, **changes}
    return validate(RewardTraining, values, "c")


def trainer(of=None, **changes):
    of = of or scorer()
    return RewardTrainer(of, config(**changes), pairs(of), seed=0)


def weights(of):
    return torch.cat([p.detach().flatten() for p in of.model.parameters()])


def test_it_learns_which_answer_is_better():
    rl = trainer()
    first = rl.step(0).metrics
    for step in range(1, 20):
        last = rl.step(step).metrics
    assert last["loss"] < 0.1 < first["loss"] and last["reward_accuracy"] == 1.0
    assert last["reward_margin"] > 2 and rl.measure(pairs(rl.scorer)) == [1.0] * 4
    # The sum of both numbers is tied to zero.
    assert abs(last["reward_better"] + last["reward_worse"]) < last["reward_margin"]


def test_micro_batches_change_memory_and_not_the_weights():
    whole, cut = trainer(tokens_per_micro_batch=4096), trainer(tokens_per_micro_batch=1)
    figures = whole.step(0).metrics, cut.step(0).metrics
    assert figures[0]["loss"] == pytest.approx(figures[1]["loss"], abs=1e-6)
    assert figures[0]["grad_norm"] == pytest.approx(figures[1]["grad_norm"], rel=1e-4)
    torch.testing.assert_close(weights(whole.scorer), weights(cut.scorer), atol=1e-5, rtol=0)


def test_a_resumed_trainer_ends_in_the_same_weights():
    whole = trainer(batch_size=3)
    for step in range(4):
        whole.step(step)
    broken = trainer(batch_size=3)
    broken.step(0), broken.step(1)
    kept = {name: tensor.clone() for name, tensor in broken.state_tensors().items()}
    again = trainer(batch_size=3)
    again.load(kept, broken.state())
    again.step(2), again.step(3)
    assert torch.equal(weights(whole.scorer), weights(again.scorer))


def test_dropout_is_the_same_after_a_restart():
    def noisy():
        made = trainer()
        layer = made.scorer.model.get_input_embeddings()
        layer.register_forward_hook(lambda *given: torch.nn.functional.dropout(given[2], 0.5))
        return made

    whole, broken, again = noisy(), noisy(), noisy()
    losses = [whole.step(step).metrics["loss"] for step in range(2)]
    broken.step(0)
    again.load({name: t.clone() for name, t in broken.state_tensors().items()}, broken.state())
    torch.rand(7)  # Where the process's own noise stands does not count.
    assert again.step(1).metrics["loss"] == losses[1]
    assert torch.equal(weights(whole.scorer), weights(again.scorer))


def test_what_is_saved_says_what_the_trainer_said(tmp_path):
    rl = trainer()
    rl.step(0)
    with torch.no_grad():
        said = rl.scorer.scores([side for p in pairs(rl.scorer) for side in (p.better, p.worse)])
    save_scorer(rl.scorer, tmp_path / "model")
    asked = [(p, text) for p, both in zip(PROMPTS, ANSWERS, strict=True) for text in both]
    rated = Classifier(ClassifierSpec(str(tmp_path / "model"))).rate(asked)
    assert [r.logits[0] for r in rated] == pytest.approx(said.tolist(), abs=1e-5)


def test_its_longest_input_is_saved_with_it(tmp_path):
    of = scorer(spec=ClassifierSpec("", max_tokens=12))
    assert len(of.encoder.encode(PROMPTS[2], "yes sir").ids) == 12
    save_scorer(of, tmp_path / "model")
    assert Classifier(ClassifierSpec(str(tmp_path / "model"))).max_tokens == 12


def test_the_trunk_is_the_models_and_the_head_follows_from_the_seed():
    policy = load_policy(tiny_model(), "cpu", 0)
    trunk = policy.model.base_model
    before = {name: p.detach().clone() for name, p in trunk.named_parameters()}
    one = new_scorer(policy, 5, ClassifierSpec(""))
    for name, p in one.model.base_model.named_parameters():
        assert torch.equal(p, before[name]) and p.requires_grad
    heads = [scorer_of.model.score.weight for scorer_of in (one, scorer(5), scorer(6))]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_a_chat_settings_refusal_is_one_line():
    policy = load_policy(tiny_model(), "cpu", 0)
    policy.tokenizer.chat_template = None
    with pytest.raises(UserError, match=r"stages\.r\.layout: the tokenizer has no chat template"):
        new_scorer(policy, 0, ClassifierSpec("", layout="chat", field="stages.r"))


def test_defaults_are_the_published_ones():
    assert config().optimizer == OptimizerConfig(lr=3e-3)
    assert validate(RewardTraining, {"epochs": 1}, "c").optimizer.lr == 6e-6


def test_an_adapter_is_merged_first():
    pytest.importorskip("peft")
    policy = load_policy(tiny_model(lora={"rank": 2}), "cpu", 0)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.01)
    ids = torch.tensor([[5, 6, 7]])
    policy.model.get_base_model().set_attn_implementation("sdpa")
    with torch.no_grad():
        wanted = policy.model(ids, output_hidden_states=True).hidden_states[-1]
    of = new_scorer(policy, 0, ClassifierSpec(""))
    with torch.no_grad():
        found = of.model.base_model(ids).last_hidden_state
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert all("lora" not in name and p.requires_grad for name, p in of.model.named_parameters())
