"""What a trace knows of the default random generator: which state it is in, and who asks for it or puts one back.

``torch.utils.checkpoint`` takes the state before a forward, and puts it back around computing that again. A state that
is read is a tensor of the program, made where it was read; one that is put back is put back in the program, at the
next draw or at the end. Where nothing was drawn between, it is the state that is there already: nothing is recorded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NoReturn, Protocol

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.generator import RANDOM_STATE, SET_RANDOM_STATE, address_of, draws, seeded_state, state_bytes

_STATE: Final = "_tmmu_random_state"


class Recording(Protocol):
    """What this needs of a recorder."""

    def here(self) -> "Place":
        """The place that the program has come to."""
        ...

    def fresh(self, size: int) -> torch.Tensor:
        """Bytes that no call has made yet."""
        ...

    def insert(self, place: "Place", func: OpOverload, args: tuple[Any, ...], result: torch.Tensor | None) -> fx.Node:
        """A call at this place; tensors in ``args`` are known or become so."""
        ...

    def changed(self, tensor: torch.Tensor) -> bool:
        """Whether some call wrote to it in place."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """After which node a call belongs (``None``: before all), and what is noted of it."""

    after: fx.Node | None
    notes: Mapping[str, Any]


class _State:
    """A state of the generator: the tensor that holds it, once it was read, and where that was."""

    __slots__ = ("node", "place", "tensor")

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None
        self.place: Place | None = None
        self.node: fx.Node | None = None


class Randomness:
    """``_there`` is the state that the program has left so far, ``_wanted`` the one that eager has by now."""

    def __init__(self, recorder: Recording, device: str) -> None:
        self._recorder, self._device = recorder, device
        self._there = self._wanted = _State()
        self._asked = Place(after=None, notes={})
        self._stand_in = _StandIn()
        self._stand_in.randomness = self if device == "cpu" else None
        self._defaults = frozenset(map(address_of, (self._stand_in, torch._C.default_generator)))

    # -- what the program does

    def read(self) -> torch.Tensor:
        """The state of now."""
        state = self._wanted
        if state.tensor is None:
            state.place = self._recorder.here()
            state.tensor = self._recorder.fresh(state_bytes(self._device))
            state.tensor.__dict__[_STATE] = state
        self._require_intact(state.tensor)
        return state.tensor

    def put(self, tensor: torch.Tensor) -> None:
        """This state is the one of now, whatever it was made of."""
        if tensor.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        known = tensor.__dict__.get(_STATE)
        self._asked = self._recorder.here()
        if known is not None:
            self._require_intact(tensor)
            self._wanted = known
            return
        self._set(tensor)  # at once: nobody says that the tensor stays as it is
        self.lost()

    def seed(self, seed: int) -> None:
        """The state of now is that of a generator that was just seeded."""
        self.put(seeded_state(self._device, seed))

    def lost(self) -> None:
        """Others have run, and nobody knows the state of now."""
        self._there = self._wanted = _State()

    def before(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Told of each call, before it is recorded. Its ``kwargs``, the default generator left out."""
        if not draws(func, args, kwargs, self._defaults):
            return kwargs
        self.settle()
        self.lost()
        return kwargs | {"generator": None} if kwargs.get("generator") is not None else kwargs

    def settle(self) -> None:
        """The program leaves the state that eager would."""
        if self._wanted is not self._there:
            self._set(self._wanted.tensor)
            self._there = self._wanted

    def _set(self, tensor: torch.Tensor | None) -> None:
        """At the end of what is recorded so far, as an act of the place where it was asked for."""
        end = self._recorder.here().after
        self._recorder.insert(Place(end, self._asked.notes), SET_RANDOM_STATE, (tensor,), None)

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The call that reads this state, recorded now if nobody wanted it before; none for another tensor."""
        state = tensor.__dict__.get(_STATE)
        if state is None or state.place is None:
            return None
        if state.node is None:
            state.node = self._recorder.insert(state.place, RANDOM_STATE, (self._device,), tensor)
        return state.node  # type: ignore[no-any-return]

    def _require_intact(self, tensor: torch.Tensor) -> None:
        if self._recorder.changed(tensor):
            raise UnsupportedOp("the state of a random generator is changed in place", fix="change a clone of it")

    # -- who asks

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While inside, whoever reads, sets or seeds the default generator of the device asks here."""
        with ExitStack() as stack:
            for owner, name, ours in (*self._of_cpu(), *(self._of_cuda() if self._device == "cuda" else ())):
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, ours)
            yield
            self.settle()

    def _of_cpu(self) -> Sequence[tuple[Any, str, Any]]:
        return [(owner, "default_generator", self._stand_in) for owner in (torch.random, torch)]

    def _of_cuda(self) -> Sequence[tuple[Any, str, Any]]:
        """A GPU that this machine may lack: its generator is the one that operators draw from."""
        ours: dict[str, Callable[..., Any]] = {
            "get_rng_state": lambda device="cuda": self.read(),  # noqa: ARG005 - torch's own names
            "get_rng_state_all": lambda: [self.read()],
            "set_rng_state": lambda new_state, device="cuda": self.put(new_state),  # noqa: ARG005
            "set_rng_state_all": lambda new_states: self.put(new_states[0]),
            "manual_seed": self.seed,
            "manual_seed_all": self.seed,
            "seed": _refuse_seed,
            "seed_all": _refuse_seed,
        }
        return [
            *((owner, name, function) for owner in (torch.cuda, torch.cuda.random) for name, function in ours.items()),
            (torch.random, "fork_rng", self._fork),
            (checkpoint, "_get_device_module", lambda _device="cuda": SimpleNamespace(_initialized=True)),
            (checkpoint, "get_device_states", self._states_for),
            (checkpoint, "set_device_states", lambda _, states, **__: list(map(self.put, states))),
        ]

    def _states_for(self, *args: Any) -> tuple[list[int], list[torch.Tensor]]:
        """Of the devices of these arguments: of the one, where a tensor is among them."""
        return ([0], [self.read()]) if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args)) else ([], [])

    @contextmanager
    def _fork(self, devices: Any = None, enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:  # noqa: FBT001, FBT002
        before = self.read() if enabled and (devices is None or list(devices)) else None
        try:
            yield
        finally:
            if before is not None:
                self.put(before)


class _StandIn(torch.Generator):
    """The CPU's default generator, for those who call its methods; on another target nothing draws from it."""

    randomness: Randomness | None

    def get_state(self) -> torch.Tensor:
        return self.randomness.read() if self.randomness else torch._C.default_generator.get_state()

    def set_state(self, state: torch.Tensor) -> "_StandIn":
        if self.randomness:
            self.randomness.put(state)
        return self

    def manual_seed(self, seed: int) -> "_StandIn":
        if self.randomness:
            self.randomness.seed(seed)
        return self

    def initial_seed(self) -> int:
        return torch._C.default_generator.initial_seed()

    def seed(self) -> NoReturn:
        _refuse_seed()


def _refuse_seed() -> NoReturn:
    raise UnsupportedOp("the model seeds the random generator by chance", fix="use torch.manual_seed with a number")
