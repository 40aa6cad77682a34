"""A captured program: an fx graph whose nodes know the windows that they read and write.

Every node of ``graph`` that yields tensors carries ``meta["windows"]`` (one per tensor of its flattened
result, ``None`` for anything else); ``call_function`` nodes also carry ``meta["mutates"]`` (windows changed in
place), ``meta["stage"]``, ``meta["module"]``, ``meta["source"]`` and ``meta["sequence"]`` (the autograd number that
pairs a forward op with its gradient; -1 where there is none). Of a step of the user's, ``meta["numbers_vary"]`` says
that a call's numbers are others in the next step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from tmmu.ir.lifetimes import EagerRun
from tmmu.ir.program import AssumedRouting, Switches


class Window(NamedTuple):
    """A strided view: ``offset`` in bytes from the start of a storage; ``shape`` and ``stride`` in elements.

    ``conj`` and ``neg`` are torch's lazy bits: whoever reads the window sees its elements conjugated or negated.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    conj: bool = False
    neg: bool = False

    @property
    def is_lazy(self) -> bool:
        """Whether its elements are other than the bytes say."""
        return self.conj or self.neg

    @property
    def in_memory(self) -> "Window":
        """The same window on the elements as they lie in memory."""
        return self._replace(conj=False, neg=False) if self.is_lazy else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A storage that the program touches; ``role`` is ``None`` for one that an op makes."""

    bytes: int
    role: str | None
    name: str
    """Path of the parameter or buffer, or name of the input; empty for what ops make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingStorage:
    """A storage that the program made and somebody still holds after it; ``source`` is the line that made it."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRemains:
    """What one run of a step of the user's left, by the names of ``training/reach.py``.

    ``tensors``: the window of each that it reaches then, ``None`` on a storage that the run did not touch. ``results``:
    of the tensors that it returned, by path. ``numbers`` are Python's, without those that depend on what tensors hold.
    ``updates``: how many times it called ``step`` of an optimizer; ``has_optimizer``: whether it reaches one that has
    parameters with a gradient then.
    """

    tensors: Mapping[str, Window | None]
    results: tuple[tuple[str, Window], ...]
    numbers: Mapping[str, Any]
    generators: Mapping[str, torch.Generator]
    updates: int
    has_optimizer: bool


@dataclass(frozen=True, slots=True)
class RankKinds:
    """``kind_of[r]`` is the number of rank r's kind: ranks of one kind have shards of equal shapes of all tensors that
    a trace met, and equal places in the groups that the program asks for its place in.

    ``reads`` are the lines in which the program asks which of all ranks it is: by that, ranks of a kind may differ.
    """

    kind_of: tuple[int, ...]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """``calls`` between ranks in one run of a rank, and the ``bytes`` that it sends to others in them."""

    calls: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedProgram:
    """What was traced: the calls in order, the storages behind them, what comes in and what goes out."""

    name: str
    device: str
    graph: fx.Graph
    storages: tuple[Storage, ...]
    inputs: tuple[Window, ...]
    outputs: tuple[Window, ...]
    assumed: tuple[str, ...] = ()
    """Inputs and buffers whose values decided which calls there are, or their shapes."""
    survivors: tuple[SurvivingStorage, ...] = ()
    """What is made, is no output, and outlives the program: an optimizer's state in ``forward``, a list of results."""
    scaled_updates: int = 0
    """Updates behind a scaler of gradients, which are in the program as if none overflowed."""
    switches: tuple[Switches, ...] = ()
    """Kernel switches under which calls were made, torch's defaults left out, in the order in which they came."""
    eager: EagerRun | None = None
    """How long eager holds what the program makes; ``None`` where another program than the user's was recorded."""
    first: EagerRun | None = None
    """Of a step of the user's, its first run, which makes the state that the others find."""
    growth: int = 0
    """Bytes by which a step of the user's leaves more than it found."""
    remains: StepRemains | None = None
    """Of a step of the user's, what it left."""
    next_run: "CapturedProgram | None" = None
    """Of a step of the user's, the run after this one: the same calls, with other numbers where those vary."""
    rank_kinds: RankKinds | None = None
    """Of one rank of many, which others do the same; ``None`` where the request names no ``world``."""
    routings: tuple[AssumedRouting, ...] = ()
    """How gates were taken to route under a declared capacity, where that decided calls or shapes."""
    traffic: Traffic | None = None
    """Of one rank of many, what it sends to others; ``None`` where the request names no ``world``."""
