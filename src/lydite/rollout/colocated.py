"""vLLM for a policy: beside the learner, or in a process of its own.

Beside the learner it samples with the policy's own weights, copied over.

Starting vLLM takes from half a minute to several, so one is kept from stage to stage, as long as
the model's shape and the settings are the same.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lydite.model.adapters import merged_state
from lydite.model.loading import ModelConfig, load_policy, load_prompting
from lydite.model.policy import Policy
from lydite.model.reference import has_adapter
from lydite.model.source import find_source
from lydite.rollout.engine import EngineConfig
from lydite.rollout.vllm import VllmEngine
from lydite.rollout.vllm_start import Served

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_NO_SHAPE = frozenset({"_name_or_path", "architectures", "transformers_version"})
"""What a configuration says of where a model came from."""


@dataclass(slots=True)
class _Kept:
    engine: VllmEngine | None = None
    key: object = None


_kept = _Kept()


def colocated(policy: Policy, config: EngineConfig, seed: int = 0) -> VllmEngine:
    """A vLLM that samples with the policy's present weights, as version 0; the one of the last call
    where it fits. :meth:`VllmEngine.refresh` has it follow what training makes of them.

    Raises:
        UserError: as :class:`VllmEngine`.
    """
    served = serve(policy)
    adapter = served.adapter and dict(served.adapter)
    shape = {k: v for k, v in policy.model.config.to_dict().items() if k not in _OF_NO_SHAPE}
    ends = sorted(served.stop_ids)
    own = [
        str(sorted(shape.items())),
        str(adapter),
        str(served.dtype),
        served.context,
        ends,
        policy.tokenizer.get_vocab(),
    ]
    key = [own, config, seed, policy.device]
    ref, merge = weakref.ref(policy.model), config.vllm.lora == "merge"

    def source() -> Iterator[tuple[str, Tensor]]:
        current = ref()
        assert current is not None, "the policy that vLLM follows is gone"
        return weights_of(current, merge)

    try:
        if _kept.engine is not None and _kept.key == key:
            _kept.engine.follow(source, policy.tokenizer)
            return _kept.engine
        release()
        _kept.engine = VllmEngine(served, config, seed, source, policy.device)
        _kept.key = key
        return _kept.engine
    finally:
        shutil.rmtree(served.folder, ignore_errors=True)


def apart(model: ModelConfig, config: EngineConfig, seed: int, device: str) -> VllmEngine:
    """A vLLM in a process that only samples: it begins with the weights that loading the model
    would give, and is handed others.

    Raises:
        UserError: as loading the model, and as :class:`VllmEngine`.
    """
    awake = config.vllm.model_copy(update={"sleep": "never"})
    config = config.model_copy(update={"vllm": awake})
    found = find_source(model.path)
    changed = found.fresh or found.gguf is not None or found.adapters or model.lora is not None
    if not changed and Path(found.location).is_dir():
        shown = load_prompting(model)
        served = Served(
            Path(found.location), shown.tokenizer, shown.stop_ids, shown.context, shown.model.dtype
        )
        return VllmEngine(served, config, seed, device=device)
    policy = load_policy(model, "cpu", seed)
    served = serve(policy)
    try:
        source = partial(weights_of, policy.model, merge=False)
        engine = VllmEngine(served, config, seed, source, device)
    finally:
        shutil.rmtree(served.folder, ignore_errors=True)
    engine.let_go()
    return engine


def release() -> None:
    """Ends the vLLM that is kept, if there is one."""
    if _kept.engine is not None:
        engine, _kept.engine, _kept.key = _kept.engine, None, None
        engine.close()


def serve(policy: Policy) -> Served:
    """Puts what vLLM reads of a policy, its weights left out, into a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="lydite-vllm-model-"))
    policy.model.config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    adapter = None
    if has_adapter(policy.model):
        configs: Any = policy.model.peft_config
        adapter = configs["default"].to_dict()
    return Served(
        folder, policy.tokenizer, policy.stop_ids, policy.context, policy.model.dtype, adapter
    )


def weights_of(model: PreTrainedModel, merge: bool) -> Iterator[tuple[str, Tensor]]:
    """All of a model's weights by name. ``merge``: those of a plain model, LoRA's adapters added
    to them.
    """
    if merge and has_adapter(model):
        yield from merged_state(model).items()
    else:
        for name, parameter in model.named_parameters():
            yield name, parameter.detach()
