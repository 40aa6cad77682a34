"""A program: a graph, the operator call behind each of its ops, and, for a step under autograd, its two halves.

The graph says what memory an op touches; the call at the same position says how to run it; the joint graph says what
crosses between the halves, by the same op and value ids. The three are one value: ``tmmu.ir.edit`` changes them
together. Calls hold operators as objects, so a program is in no file; its graph is.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

from tmmu.errors import InternalError
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import Rewrite

Switches: TypeAlias = tuple[tuple[str, Any], ...]
"""(name, value) of each switch of torch that chooses kernels and differs from its default."""


@dataclass(frozen=True, slots=True)
class ValueRef:
    """Stands for a tensor in an argument list: the value with this id.

    ``conj`` and ``neg`` are torch's lazy bits: the call is given the elements conjugated or negated, which nothing has
    done in memory. They are no part of the graph: the bytes are those of the value.
    """

    value: int
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Stands for a process group in an argument list, which a run has its own of.

    ``name`` is what the trace called it, ``members`` are its ranks of all ``world``, and ``rank`` is the one traced.
    """

    name: str
    members: tuple[int, ...]
    rank: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRouting:
    """Gates of one line, and how they are taken to route: an expert gets ``capacity`` tokens of one rank at most.

    Each of ``gates`` chooses ``choices`` of ``experts`` for each of ``tokens``; ``factor`` is the capacity's, declared.
    """

    source: str
    gates: int
    tokens: int
    choices: int
    experts: int
    capacity: int
    factor: Fraction


def factor_text(factor: Fraction) -> str:
    """A factor as a decimal number: ``1.25``."""
    text = f"{Decimal(factor.numerator) / Decimal(factor.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class ItemRef:
    """Stands for a number in a formula: that of the tensor at this place."""

    place: int


@dataclass(frozen=True, slots=True)
class NumberFormula:
    """How Python computed a number from those of tensors (``.item()``), before it gave it to a call.

    An argument of a call that is such a number is a tuple of the formula and the tensors, in the order of their places.
    ``expression`` is a number, an ``ItemRef``, or a tuple of a name in ``NUMBER_OPERATIONS`` and its operands.
    """

    expression: Any

    def evaluate(self, items: Sequence[Any]) -> Any:
        """The number, computed as Python did, from the numbers of the tensors.

        Errors: Python's own ``ArithmeticError``; ``ValueError`` for a complex one, of which no call was traced.
        """

        def value(part: Any) -> Any:
            if isinstance(part, ItemRef):
                return items[part.place]
            if isinstance(part, tuple):
                return NUMBER_OPERATIONS[part[0]](*map(value, part[1:]))
            return part

        number = value(self.expression)
        if isinstance(number, complex):
            raise ValueError("a number that the model computes is complex here, a root of one below zero")
        return number


NUMBER_OPERATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "add": operator.add,
    "floordiv": operator.floordiv,
    "max": max,
    "min": min,
    "mod": operator.mod,
    "mul": operator.mul,
    "neg": operator.neg,
    "pow": operator.pow,
    "sub": operator.sub,
    "truediv": operator.truediv,
}
"""What Python may do to a number that a run alone knows."""


def is_formula(argument: Any) -> bool:
    """Whether an argument of a call is a number that a formula gives."""
    return isinstance(argument, tuple) and bool(argument) and isinstance(argument[0], NumberFormula)


def has_formulas(arguments: Iterable[Any]) -> bool:
    """Whether a number among arguments, in lists too, is one that a formula gives."""
    return any(
        is_formula(argument) or (isinstance(argument, (list, tuple)) and has_formulas(argument))
        for argument in arguments
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator call. ``results`` has a value per tensor of the flattened result, ``None`` for anything else.

    ``sequence`` is the number by which autograd pairs a forward op with its gradient, ``origin`` the position of the
    call among those that were captured, which lasts through every edit; -1 where there is none.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int | None, ...]
    sequence: int = -1
    origin: int = -1
    switches: Switches = ()
    """Under which the call was made, and runs."""
    numbers_vary: bool = False
    """Whether its numbers are others in the next step: inputs of the step, in no hash."""

    @property
    def has_formulas(self) -> bool:
        """Whether a number among its arguments is computed from tensors as it runs."""
        return has_formulas((*self.args, *(argument for _, argument in self.kwargs)))

    def refs(self) -> Iterator[ValueRef]:
        """The tensors among the arguments, with repetitions."""
        pending: list[Any] = [*self.args, *(argument for _, argument in self.kwargs)]
        while pending:
            argument = pending.pop()
            if isinstance(argument, ValueRef):
                yield argument
            elif isinstance(argument, (list, tuple)):
                pending.extend(argument)
            elif isinstance(argument, dict):
                pending.extend(argument.values())
            elif isinstance(argument, slice):
                pending.extend((argument.start, argument.stop, argument.step))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentView:
    """A window on argument number ``argument`` of a half, in elements; ``whole``: the argument itself.

    ``conj`` and ``neg`` as of ``ValueRef``.
    """

    argument: int
    whole: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


Output: TypeAlias = ValueRef | ArgumentView | int | float | bool | None
"""One output of a half: a tensor of the program, a window on an argument, or what is no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelivery:
    """The outputs that a half hands to its caller after the first ``after`` ops of the program have run."""

    after: int
    outputs: tuple[int, ...]
    """Positions in ``GraphHalf.outputs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphHalf:
    """The signature of a half. Tensors of the program among ``outputs`` leave by ``deliveries``, in order."""

    arguments: tuple[str | None, ...]
    """Names of the program's inputs; ``None`` for a number, and for a residual of the forward half."""
    outputs: tuple[Output, ...]
    deliveries: tuple[OutputDelivery, ...]
    objects: tuple[int, ...]
    """Per output, the first position at which the caller gets the same object; two objects may have one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGraph:
    """Forward and backward of one step in one order of ops, as AOTAutograd cuts it.

    Residuals stay where the plan puts them between the halves. ``backward`` is ``None`` where nothing is trained.
    """

    forward_ops: int
    """So many ops of the program, the first ones, are the forward half."""
    user_outputs: int
    """So many outputs of the forward half, the first ones, are the caller's; the others are residuals."""
    forward: GraphHalf
    backward: GraphHalf | None
    residuals: tuple[int, ...]
    """Per argument of the backward half, its position among the forward outputs; -1 for an input of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBase:
    """What a program was rewritten from, and how: binding holds it against that.

    ``rewritten``: the graph that the rewrite makes, where the program is that one with ops fused since.
    """

    graph: Graph
    calls: tuple[Call, ...]
    rewrite: Rewrite
    rewritten: Graph | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All that an executor needs beside a plan and the weights."""

    graph: Graph
    calls: tuple[Call, ...]
    """One for each op of the graph, in its order."""
    joint: JointGraph | None = None
    """``None`` for a program that runs whole."""
    base: ProgramBase | None = None
    """``None`` for the program of a model as it is."""
    routings: tuple[AssumedRouting, ...] = ()
    """Under which alone it is the model's program: such a program is planned, and never bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWindow:
    """A window of a buffer: ``offset`` in bytes, ``shape`` and ``stride`` in elements; lazy bits as of ``ValueRef``."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """One run of a step of the user's.

    ``calls`` by op have its numbers, ``constants`` by buffer are the tensors that it makes of numbers. ``left``: where
    each tensor lies afterwards that the step reaches, by name; ``None`` for one that it did not touch. ``results``:
    where the tensors lie that it returned, by path. ``numbers`` are Python's, afterwards, by name.
    """

    calls: Mapping[int, Call]
    constants: Mapping[int, Any]
    left: Mapping[str, PlacedWindow | None]
    results: tuple[tuple[str, PlacedWindow], ...]
    numbers: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedStep:
    """A step of the user's that runs again and again, after a first time that made the state which it finds.

    Tensors are named as the step reaches them (docs/spec/capture.md), so that another load of the same file has the
    same names for the same tensors.

    ``found``: by buffer, the name of the tensor whose storage it is before the runs. ``carried``: by buffer, the one
    whose bytes it has before the next run, where the step put another tensor in the place of the one that it found.
    ``generators`` are those that its calls draw from, by name. ``updates``: calls of an optimizer's ``step`` in a run.
    """

    runs: tuple[StepRun, ...]
    found: Mapping[int, str]
    carried: Mapping[int, int]
    generators: Mapping[str, Any]
    updates: int


def joint_graph(program: Program) -> JointGraph:
    """The halves of a program that was cut in two; ``INTERNAL`` for one that was not."""
    if program.joint is None:
        raise InternalError("a program that runs whole was asked for its halves")
    return program.joint


def map_refs(argument: Any, rename: Callable[[ValueRef], ValueRef]) -> Any:
    """The same argument with every tensor in it replaced; lists, tuples, dicts and slices are walked."""
    if isinstance(argument, ValueRef):
        return rename(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)(map_refs(item, rename) for item in argument)
    if isinstance(argument, dict):
        return type(argument)((key, map_refs(item, rename)) for key, item in argument.items())
    if isinstance(argument, slice):
        return slice(*(map_refs(part, rename) for part in (argument.start, argument.stop, argument.step)))
    return argument
