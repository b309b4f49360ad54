"""Decode steps of fixed shapes over buffers that stay where they are, for a GPU to replay as one
launch (a CUDA graph): with few rows a step is thousands of small kernels, and launching them takes
longer than running them.

Rows, prompts and columns are rounded up to a few sizes. Columns that are not there are masked. A
row that is not there computes what some row before it did, in a row of the cache that nobody holds,
and is dropped. So what is sampled is the same as without, up to rounding.

A shape runs as it is until it has come often enough to be worth a capture. The first replay is
compared with the plain step; where capturing fails, or the two differ, all steps are plain from
there on, and it is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lydite.config import UserError
from lydite.model.attention import hidden_states
from lydite.ops.decode import (
    COLUMNS,
    DecodeLayout,
    KeyValueCache,
    OwnLayout,
    Sharing,
    grid_cells,
)
from lydite.ops.layout import Layout
from lydite.rollout.engine import EngineConfig
from lydite.types import Request

REPEATED = 8
"""Steps of a shape before it is captured: about what a capture costs."""
MOST = 64
"""Shapes that are captured, at most."""
APART = {torch.float32: 1e-2, torch.float64: 1e-6}
"""How far a row of the first replay may be from the plain step's, in length over length."""
APART_IN_HALF = 0.1


class Capture(Protocol):
    """Makes a replay of a function that reads and writes only memory that stays where it is, and
    never asks the device for a value. Raises RuntimeError where it cannot.
    """

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]: ...


class CudaCapture:
    """CUDA graphs that share their memory: one is replayed after the other, and what it leaves is
    in buffers made before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                function()  # what a stream needs once must not be made while it is recorded
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Another thread may train meanwhile: only what this one does is recorded.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                function()
        self._pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay


def capture_for(device: torch.device) -> Capture | None:
    """How steps are captured on this device; None where they cannot be."""
    return CudaCapture(device) if device.type == "cuda" else None


def graphs_of(
    kept: GraphedDecode | None, model: nn.Module, config: EngineConfig, requests: Sequence[Request]
) -> GraphedDecode | None:
    """What is captured in a call for these requests, those of the calls before if there are any;
    None where steps are not replayed.

    Raises:
        UserError: they are to be replayed always, on a device that cannot.
    """
    device = next(model.parameters()).device
    if capture_for(device) is None:
        if config.cuda_graphs == "always":
            raise UserError(
                f"engine.cuda_graphs: `always` needs a CUDA device, not {device}; set `auto`"
            )
        return None
    if not config.graphs(max(request.params.max_tokens for request in requests)):
        return None
    if config.cuda_graphs == "auto" and any(
        isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()
    ):
        return None  # a thread that trains may not draw random numbers while this one captures
    graphs = kept or GraphedDecode(model, device)
    graphs.begin()
    return graphs


def rounded(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, … that is not below ``count``."""
    power = 1 << max(0, count - 1).bit_length()
    return power // 4 * 3 if power >= 4 and power // 4 * 3 >= count else power


@dataclass(frozen=True, slots=True)
class Standing:
    """Where ``R`` rows stand before a step.

    ``table`` is ``[3, R]`` on the device: tokens of each completion, of its prompt, and its last
    token. ``columns`` of the cache hold all that the rows have, the new token included.
    ``sharing`` is None where rows go on in their prompts' slots, and else made anew when rows come
    or go; ``slots`` ``[R]`` are then their prompts'.
    """

    table: Tensor
    columns: int
    sharing: Sharing | None
    slots: np.ndarray


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a step, or the largest of a call. Without ``prompt_columns`` rows go on in their
    prompts' slots.
    """

    rows: int
    columns: int
    prompt_columns: int
    slots: int
    width: int

    @staticmethod
    def of(at: Standing, most: Shape) -> Shape:
        """Rounded up, to at most what a call can ever need. Nothing else decides, not even the room
        there is: what a run samples would depend on what it sampled before.
        """

        def fit(columns: int, limit: int) -> int:
            return min(max(rounded(columns), COLUMNS), limit)

        rows = min(rounded(at.table.shape[1]), most.rows)
        columns, shared = fit(at.columns, most.columns), at.sharing
        if shared is None:
            return Shape(rows, columns, 0, 0, 0)
        return Shape(
            rows=rows,
            columns=columns,
            prompt_columns=fit(shared.longest, most.prompt_columns),
            slots=min(rounded(shared.slots), most.slots),
            width=min(rounded(shared.width), most.rows),
        )

    def make_room(self, cache: KeyValueCache, most: Shape) -> None:
        """In the cache. Of what rows write all at once, as what is captured ends where it moves."""
        if not self.prompt_columns:
            cache.prompts.reserve(most.rows, most.columns, most.columns)
            return
        cache.completions.reserve(most.rows, most.columns, most.columns)
        cache.prompts.reserve(self.slots, self.prompt_columns, most.prompt_columns)


class StaticStep:
    """The decode step of one shape. :meth:`run` reads ``table``, ``gather`` and ``cells`` and the
    cache, and writes the cache and ``out`` ``[rows, d]``; nothing else changes from step to step.
    """

    def __init__(self, model: nn.Module, cache: KeyValueCache, shape: Shape) -> None:
        self._model = model
        self._cache = cache
        self._shape = shape
        device = cache.shape.device
        self.table = torch.zeros(3, shape.rows, dtype=torch.long, device=device)
        self.gather = torch.zeros(shape.slots * shape.width, dtype=torch.long, device=device)
        self.cells = torch.zeros(shape.rows, dtype=torch.long, device=device)
        self.out: Tensor | None = None
        self.seen = 0
        self.replay: Callable[[], None] | None = None
        self._loaded: Sharing | None = None

    def load(self, at: Standing) -> None:
        """Puts rows in; behind them is what was there before, or nothing."""
        rows, shape = at.table.shape[1], self._shape
        self.table[:, :rows] = at.table
        if at.sharing is not None and at.sharing is not self._loaded:
            gather, cells = grid_cells(at.slots, shape.slots, shape.width)
            self.gather.copy_(torch.from_numpy(gather))
            self.cells[:rows] = torch.from_numpy(cells).to(self.cells.device)
            self._loaded = at.sharing

    def run(self) -> None:
        """One token of every row, its keys and values into the cache."""
        counts, prompts, tokens = self.table
        written = (counts - 1).clamp(min=0)
        positions = prompts + written
        layout = self._layout(prompts, written, positions)
        states = hidden_states(self._model, tokens, positions, layout)
        if self.out is None:
            self.out = torch.empty_like(states)
        self.out.copy_(states)

    def _layout(self, prompts: Tensor, written: Tensor, positions: Tensor) -> Layout:
        shape = self._shape
        last = shape.columns - 1
        if not shape.prompt_columns:
            return OwnLayout(self._cache.prompts, positions, last, uniform=False)
        columns = torch.arange(shape.prompt_columns, device=prompts.device)
        sharing = Sharing(
            slots=shape.slots,
            width=shape.width,
            longest=shape.prompt_columns,
            gather=self.gather,
            cells=self.cells,
            hidden=columns >= prompts[:, None],
        )
        return DecodeLayout(self._cache, sharing, written, last, uniform=False)


class GraphedDecode:
    """The decode steps of an engine, kept from call to call as long as cache and weights stay where
    they are.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._steps: dict[Shape, StaticStep] = {}
        self._capture: Capture | None = None
        self._places: tuple[int, ...] = ()
        self._weights: tuple[int, ...] = ()
        self.on = True

    def begin(self) -> None:
        """Before a call: the weights may lie elsewhere than in the last."""
        self._weights = tuple(parameter.data_ptr() for parameter in self._model.parameters())

    def clear(self) -> None:
        """Lets go of everything captured, and of the cache."""
        self._steps = {}
        self._capture = None
        self._places = ()

    def states(
        self, at: Standing, cache: KeyValueCache, most: Shape, plain: Callable[[], Tensor]
    ) -> Tensor:
        """Hidden states ``[R, d]`` of the rows' last tokens, valid until the next step. ``most`` is
        what the call can need; ``plain`` computes the states, and what goes into the cache, the
        plain way.
        """
        shape = Shape.of(at, most)
        shape.make_room(cache, most)
        places = (cache.prompts.address, cache.completions.address, *self._weights)
        if places != self._places:
            self.clear()
            self._places = places
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = StaticStep(self._model, cache, shape)
        step.load(at)
        if step.replay is not None:
            step.replay()
        elif (
            step.seen < REPEATED or sum(s.replay is not None for s in self._steps.values()) >= MOST
        ):
            step.seen += 1
            step.run()
        elif not self._captured(step, plain):
            return plain()
        assert step.out is not None
        return step.out[: at.table.shape[1]]

    def _captured(self, step: StaticStep, plain: Callable[[], Tensor]) -> bool:
        """Captures a step and replays it, if the replay gives what the plain step does. The replay
        comes last, so that the cache holds what it would have held without a check.
        """
        wanted = plain()
        if self._capture is None:
            self._capture = capture_for(self._device)
        assert self._capture is not None
        try:
            step.replay = self._capture(step.run)
            step.replay()
            apart = _furthest(step.out, wanted)
            limit = APART.get(wanted.dtype, APART_IN_HALF)
            said = "" if apart <= limit else f"the first replay is {apart:.1g} from the plain step"
        except RuntimeError as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
        if said:
            self.on = False
            self.clear()
            warnings.warn(
                f"CUDA graphs for decoding are off, steps are launched one by one: {said}",
                stacklevel=2,
            )
        return not said


def _furthest(found: Tensor | None, wanted: Tensor) -> float:
    """Of the rows of ``wanted`` the largest difference, in length over length."""
    assert found is not None
    wide = torch.promote_types(wanted.dtype, torch.float32)
    a, b = found[: len(wanted)].to(wide), wanted.to(wide)
    return float(((a - b).norm(dim=1) / b.norm(dim=1)).max())
