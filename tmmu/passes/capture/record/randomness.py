"""The state of the default random generator in a trace: where it is read, and where one is put back.

``torch.utils.checkpoint`` takes the state before a forward, and puts it back around computing that again. A state that
is read is a tensor of the program, made where it was read; one that is put back is put back in the program, before the
next draw or at the end.

A trace draws nothing, so states cannot be compared; they are told apart by the draws between them. A ``_State`` stands
for the generator between two draws, and there are two of them to keep:

- ``_eager_state``, the one in which eager's generator is by now;
- ``_program_state``, the one in which the calls recorded so far leave it.

They differ only between a ``set_state`` of the user's and the next draw: restoring moves ``_eager_state`` alone, and
``apply_pending`` records the set operator where they differ. Before each draw they are made equal, and after it both
become a new, unread state. So a state that is there already is not set, a chain of checkpoints sets one state each, and
a trace without draws in between records nothing. A state's read operator is recorded when its tensor is first used by a
call or returned, at the point where it was read; no draw lies between, so it reads what it would have read.

Only the two states that are kept hold their tensors; those of all others die when the program drops them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NoReturn

import torch
from torch import fx
from torch.utils import checkpoint

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.record.generator import RANDOM_STATE, SET_RANDOM_STATE, draws, seeded_state, state_bytes
from tmmu.passes.capture.record.graph_builder import GraphBuilder, InsertionPoint
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    CHECKPOINT_DEVICE_MODULE,
    INITIALIZED_DEVICE_MODULE,
    OpOverload,
    cpp_address,
    default_generator,
    tree_leaves,
)

_STATE: Final = "_tmmu_random_state"


class _State:
    """The generator between two draws: its state's tensor once read, the point of the read, and the read node."""

    __slots__ = ("node", "point", "tensor")

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None
        self.point: InsertionPoint | None = None
        self.node: fx.Node | None = None


class Randomness:
    """The default generator of the traced device, as the traced code sees it.

    ``pause`` makes a block whose calls are not recorded.
    """

    def __init__(self, builder: GraphBuilder, pause: Callable[[], AbstractContextManager[None]], device: str) -> None:
        self._builder, self._pause, self._device = builder, pause, device
        self._program_state = self._eager_state = _State()
        self._restore_point = InsertionPoint(after=None, notes={})
        self._stand_in = _StandIn()
        self._stand_in.randomness = self if device == "cpu" else None
        self._defaults = frozenset(map(cpp_address, (self._stand_in, default_generator)))

    # -- what the program does

    def read_state(self) -> torch.Tensor:
        """The generator's present state, ``uint8[state_bytes(device)]``."""
        state = self._eager_state
        if state.tensor is None:
            state.point = self._builder.current_point()
            with self._pause():
                state.tensor = torch.empty(state_bytes(self._device), dtype=torch.uint8)
            state.tensor.__dict__[_STATE] = state
        self._require_intact(state.tensor)
        return state.tensor

    def restore_state(self, tensor: torch.Tensor) -> None:
        """Make this the generator's state, whether it was read before or comes from elsewhere."""
        if tensor.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        state = tensor.__dict__.get(_STATE)
        self._restore_point = self._builder.current_point()
        if state is not None:
            self._require_intact(tensor)
            self._move_eager(state)
            state.tensor = tensor
            return
        # At once: a tensor from elsewhere may be written to before the next draw.
        self._record_set(tensor)
        self.forget_state()

    def seed(self, seed: int) -> None:
        """Make the generator's state that of one that was just seeded."""
        self.restore_state(seeded_state(self._device, seed))

    def forget_state(self) -> None:
        """After a draw: program and eager are in one state, which nobody has read."""
        for state in (self._program_state, self._eager_state):
            state.tensor = None
        self._program_state = self._eager_state = _State()

    def _move_eager(self, state: _State) -> None:
        if self._eager_state is not self._program_state:
            self._eager_state.tensor = None
        self._eager_state = state

    def before_call(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """To be called before each call is recorded. Returns its ``kwargs`` without the default generator."""
        if not draws(func, args, kwargs, self._defaults):
            return kwargs
        self.apply_pending()
        self.forget_state()
        return kwargs | {"generator": None} if kwargs.get("generator") is not None else kwargs

    def apply_pending(self) -> None:
        """Put the program into the state in which eager is."""
        if self._eager_state is not self._program_state:
            self._record_set(self._eager_state.tensor)
            self._program_state.tensor = None
            self._program_state = self._eager_state

    def let_go(self) -> None:
        """At the end of a program: keep no state's tensor, so that those live on which the program itself holds."""
        self.apply_pending()
        self.forget_state()

    def _record_set(self, tensor: torch.Tensor | None) -> None:
        """After the last call recorded so far, with the notes of the point that asked for it."""
        end = self._builder.current_point().after
        self._builder.insert_call(InsertionPoint(end, self._restore_point.notes), SET_RANDOM_STATE, (tensor,), None)

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The call that reads this state, recorded now if it is the first use; ``None`` for another tensor."""
        state = tensor.__dict__.get(_STATE)
        if state is None or state.point is None:
            return None
        if state.node is None:
            state.node = self._builder.insert_call(state.point, RANDOM_STATE, (self._device,), tensor)
        return state.node  # type: ignore[no-any-return]

    def _require_intact(self, tensor: torch.Tensor) -> None:
        if self._builder.is_mutated(tensor):
            raise UnsupportedOp("the state of a random generator is changed in place", fix="change a clone of it")

    # -- torch's functions, replaced

    @contextmanager
    def intercept(self) -> Iterator[None]:
        """Block in which torch's functions for the device's default generator read, set or seed this one."""
        replacements = (*self._cpu_replacements(), *(self._cuda_replacements() if self._device == "cuda" else ()))
        with ExitStack() as stack:
            for owner, name, replacement in replacements:
                stack.enter_context(replace_attribute(owner, name, replacement))
            yield
            self.apply_pending()

    def _cpu_replacements(self) -> Sequence[tuple[Any, str, Any]]:
        return [(owner, "default_generator", self._stand_in) for owner in (torch.random, torch)]

    def _cuda_replacements(self) -> Sequence[tuple[Any, str, Any]]:
        """For a GPU that this machine may lack: its generator is the one that operators draw from."""
        functions: dict[str, Callable[..., Any]] = {
            "get_rng_state": lambda device="cuda": self.read_state(),  # noqa: ARG005 - torch's own names
            "get_rng_state_all": lambda: [self.read_state()],
            "set_rng_state": lambda new_state, device="cuda": self.restore_state(new_state),  # noqa: ARG005
            "set_rng_state_all": lambda new_states: self.restore_state(new_states[0]),
            "manual_seed": self.seed,
            "manual_seed_all": self.seed,
            "seed": _refuse_seed,
            "seed_all": _refuse_seed,
        }
        owners = (torch.cuda, torch.cuda.random)
        return [
            *((owner, name, function) for owner in owners for name, function in functions.items()),
            (torch.random, "fork_rng", self._fork),
            (checkpoint, CHECKPOINT_DEVICE_MODULE, lambda _device="cuda": INITIALIZED_DEVICE_MODULE),
            (checkpoint, "get_device_states", self._states_of_arguments),
            (checkpoint, "set_device_states", lambda _, states, **__: list(map(self.restore_state, states))),
        ]

    def _states_of_arguments(self, *args: Any) -> tuple[list[int], list[torch.Tensor]]:
        """Devices of these arguments and their states: the traced one, where a tensor is among them."""
        has_tensor = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args))
        return ([0], [self.read_state()]) if has_tensor else ([], [])

    @contextmanager
    def _fork(self, devices: Any = None, enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:  # noqa: FBT001, FBT002
        before = self.read_state() if enabled and (devices is None or list(devices)) else None
        try:
            yield
        finally:
            if before is not None:
                self.restore_state(before)


class _StandIn(torch.Generator):
    """The CPU's default generator, for those who call its methods; on another target nothing draws from it."""

    randomness: Randomness | None

    def get_state(self) -> torch.Tensor:
        return self.randomness.read_state() if self.randomness else default_generator.get_state()

    def set_state(self, state: torch.Tensor) -> "_StandIn":
        if self.randomness:
            self.randomness.restore_state(state)
        return self

    def manual_seed(self, seed: int) -> "_StandIn":
        if self.randomness:
            self.randomness.seed(seed)
        return self

    def initial_seed(self) -> int:
        return default_generator.initial_seed()

    def seed(self) -> NoReturn:
        _refuse_seed()


def _refuse_seed() -> NoReturn:
    raise UnsupportedOp("the model seeds the random generator by chance", fix="use torch.manual_seed with a number")
