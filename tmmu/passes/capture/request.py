"""What to capture: the options of one trace, as a value."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from tmmu.passes.capture.ranks.schedules import DEFAULT_SCHEDULE, parse_schedule

Progress: TypeAlias = Callable[[str, int], None]
"""Called with (activity, ops recorded so far); must be cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """One model, one workload. ``model`` is the command line's MODEL; ``device`` is whose kernels to model.

    ``mode`` is ``inference``, ``forward``, ``backward``, or ``step`` for a function that is a step of the user's.
    ``settings`` are ``--set`` pairs as text; ``inputs`` are ``--input`` texts such as ``ids=int64[1,1024]``.
    ``symbolic_inputs``: control flow may not look at the values that the model's file gives to inputs and buffers.
    ``loss`` is ``cross_entropy``, ``mse`` or ``sum``, in place of the model's own. ``autocast`` is ``bf16`` or
    ``fp16``, the dtype of a region around forward and loss; ``dtype`` that of weights and inputs.
    ``batch``, ``seq``, ``decode`` and ``cache_len`` are for ``hf:`` targets, and so is ``checkpoint``: their layers are
    computed again for the gradient.
    ``trust``: the code that a ``.pt2`` holds may run. ``world``: how many ranks there are, of which ``rank`` is traced;
    ``None`` where the program makes its own process group, or none. ``tp`` and ``fsdp`` cut the weights of an ``hf:``
    target, whose ``world`` is their product: in columns or rows, and over ranks with batches of their own. ``ep`` of
    these ranks share the experts, each with whole ones. ``pp`` times as many have stages of a pipeline, which run
    ``microbatches`` of ``batch`` sequences in a step, by ``schedule``. ``capacity_factor``: how many times its even
    share of tokens an expert gets at most; what a count of tokens decides is then traced for a routing of that
    capacity.
    """

    model: str
    device: str = "cuda"
    mode: str = "inference"
    optimizer: str | None = None
    loss: str | None = None
    autocast: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    symbolic_inputs: bool = False
    batch: int = 1
    seq: int | None = None
    dtype: str | None = None
    decode: bool = False
    cache_len: int | None = None
    checkpoint: bool = False
    trust: bool = False
    world: int | None = None
    rank: int = 0
    tp: int = 1
    fsdp: int = 1
    ep: int = 1
    pp: int = 1
    schedule: str = DEFAULT_SCHEDULE
    microbatches: int | None = None
    capacity_factor: Fraction | None = None

    @property
    def is_own_step(self) -> bool:
        """Whether what is traced is a whole step that is called as it is, and not a model."""
        return self.mode == "step" or self.pp > 1

    @property
    def micro_batches(self) -> int:
        """How many a step has: as many as there are stages, where nobody says."""
        return self.microbatches or self.pp * parse_schedule(self.schedule).stages


def no_progress(activity: str, ops: int) -> None:
    """A ``Progress`` that says nothing."""
