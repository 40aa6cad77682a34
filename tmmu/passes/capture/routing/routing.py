"""The gates that a trace meets, and the experts that each is taken to choose under a declared capacity.

A gate is ``topk``, ``argmax`` or ``max`` over a dimension: what it chooses are integers that follow from weights and
inputs. Nothing is assumed of a gate until something looks at a value or a shape that follows from what it chooses.
Then those experts are full that make the value of this first look largest (the sum of its elements), so that a rank
that looks at its own experts finds them full. Where several make it as large, the last ones are full and each expert
gets a token, so that all weights have gradients.
Gates of one line, with as many tokens, choices and experts, are routed alike.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from tmmu.errors import InternalError
from tmmu.ir.program import AssumedRouting
from tmmu.passes.capture.routing.capacity import Filling, Gate, choices_of_tokens, last_full

_aten: Final = torch.ops.aten
_Key: TypeAlias = tuple[str, Gate]
"""A gate by its line."""
_MAX_TRIED: Final = 64
"""So many experts are tried as the first full one."""


class Routing:
    """State: by gate, which experts are full, once something has looked.

    ``factor``: the declared capacity's; ``None`` without one. ``unanswered`` is then the line of the gate that the last
    look without an answer wanted, empty where it wanted another value; ``is_count``: it wanted what is counted of the
    choices, and not a choice itself, such as the next token of a text.
    """

    def __init__(self, factor: Fraction | None) -> None:
        self.factor = factor
        self.unanswered = ""
        self.is_count = False
        self._fillings: dict[_Key, Filling] = {}
        self._looked_at: dict[fx.Node, _Key] = {}

    def choose(self, gates: Sequence[fx.Node], sum_seen: Callable[[], float]) -> None:
        """Decide what is open of these gates, at the first look: ``sum_seen`` is that of what it sees."""
        keys = dict.fromkeys(_key_of(node) for node in gates)
        undecided = [key for key in keys if key not in self._fillings]
        if undecided:
            best: tuple[float, dict[_Key, Filling]] | None = None
            for fillings in self._candidates(undecided):
                self._fillings.update(fillings)
                total = sum_seen()
                if best is None or total > best[0]:
                    best = total, fillings
            if best is not None:
                self._fillings.update(best[1])
        self._looked_at.update((node, _key_of(node)) for node in gates)

    def choices(self, node: fx.Node) -> torch.Tensor:
        """The experts that the gate chooses, in the form of what the node yields."""
        key = _key_of(node)
        choices = choices_of_tokens(key[1], self._capacity(key[1]), self._fillings[key])
        window = node.meta["windows"][0]
        return choices.view(window.shape).to(getattr(torch, window.dtype))

    def assumed(self) -> tuple[AssumedRouting, ...]:
        """What was assumed, by line, in the order of the first looks."""
        factor, numbers = self.factor, dict[_Key, int]()
        if factor is None:
            return ()
        for key in self._looked_at.values():
            numbers[key] = numbers.get(key, 0) + 1
        return tuple(
            AssumedRouting(
                source=source,
                gates=number,
                tokens=gate.tokens,
                choices=gate.choices,
                experts=gate.experts,
                capacity=self._capacity(gate),
                factor=factor,
            )
            for (source, gate), number in numbers.items()
        )

    def note_unanswered(self, gates: Sequence[fx.Node], *, is_count: bool) -> None:
        """A look had no answer, for want of a declared capacity of these gates or of anything else."""
        self.unanswered = _key_of(gates[0])[0] if gates else ""
        self.is_count = is_count

    def _capacity(self, gate: Gate) -> int:
        if self.factor is None:
            raise InternalError("a capacity that nobody declared is asked for")
        return gate.capacity(self.factor)

    def _candidates(self, keys: Sequence[_Key]) -> Iterator[dict[_Key, Filling]]:
        """Decisions to try, the one that counts among equals first."""
        most = max(gate.experts for _, gate in keys)
        for reaches_all in (True, False):
            yield {key: last_full(key[1], self._capacity(key[1]), reaches_all=reaches_all) for key in keys}
            for first in range(0, most, -(-most // _MAX_TRIED)):
                yield {key: Filling(first=first % key[1].experts, reaches_all=reaches_all) for key in keys}


def is_gate(node: fx.Node) -> bool:
    """Whether the node yields what a gate chooses, for one token at least."""
    gate = _gate_of(node)
    return gate is not None and gate.tokens > 0 and gate.choices <= gate.experts


def _key_of(node: fx.Node) -> _Key:
    gate = _gate_of(node)
    if gate is None:
        raise InternalError(f"{node} is no gate")
    chooser = node.args[0] if node.target is operator.getitem else node
    return chooser.meta["source"], gate  # type: ignore[union-attr]


def _gate_of(node: fx.Node) -> Gate | None:
    """The choice along the last dimension of what the node's call reads; ``None`` for a node that yields none."""
    if node.target is operator.getitem and node.args[1] == 1 and isinstance(node.args[0], fx.Node):
        chooser, is_choice = node.args[0], node.args[0].target in (_aten.topk.default, _aten.max.dim)
    else:
        chooser, is_choice = node, node.target is _aten.argmax.default
    if not is_choice:
        return None
    arguments = dict(zip(_ARGUMENTS[chooser.target], chooser.args, strict=False)) | chooser.kwargs
    scores: Any = arguments["self"]
    shape = scores.meta["windows"][0].shape
    dim: Any = arguments.get("dim", -1 if chooser.target is _aten.topk.default else None)
    if dim is None or not shape or dim % len(shape) != len(shape) - 1:
        return None
    return Gate(tokens=prod(shape[:-1]), choices=int(arguments.get("k", 1)), experts=shape[-1])  # type: ignore[arg-type]


_ARGUMENTS: Final[Mapping[Any, tuple[str, ...]]] = {
    _aten.topk.default: ("self", "k", "dim"),
    _aten.max.dim: ("self", "dim"),
    _aten.argmax.default: ("self", "dim"),
}
"""By operator, what its arguments are called, as far as a gate needs them."""
