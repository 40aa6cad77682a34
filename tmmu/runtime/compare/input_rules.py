"""What operators ask of the inputs that they read as positions, offsets or probabilities, so that drawn ones are valid.

A rule follows from the call that reads an input, or a copy of it in another dtype: its arguments say how many rows
there are. What a model computes from an input is not followed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from tmmu.ir.graph import Graph
from tmmu.ir.program import Call, Program, ValueRef
from tmmu.runtime.kernels.overloads import arguments_by_name, default_of
from tmmu.torch_private import OpOverload, schema_of


@dataclass(frozen=True, slots=True)
class Below:
    """Integers from 0, below ``limit``."""

    limit: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where rows begin among ``total``: from 0, none below the one before; the last is ``total`` where ``closed``."""

    total: int
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of rows, ``total`` together."""

    total: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Numbers from 0 to 1."""


InputRule: TypeAlias = Below | Offsets | Lengths | Shares


def input_rules(program: Program) -> dict[int, InputRule]:
    """By buffer, what its readers ask; offsets before lengths, limits (the lowest) and shares. Linear in calls."""
    rules: dict[int, InputRule] = {}
    for call in reversed(program.calls):
        for buffer, rule in _rules_of_call(call, program.graph, rules):
            known = rules.get(buffer)
            rules[buffer] = rule if known is None else min(known, rule, key=_rank)
    return rules


def _rank(rule: InputRule) -> tuple[int, int]:
    match rule:
        case Offsets():
            return 0, not rule.closed
        case Lengths():
            return 1, 0
        case Below():
            return 2, rule.limit
        case Shares():
            return 3, 0


def _rules_of_call(call: Call, graph: Graph, rules: Mapping[int, InputRule]) -> Iterator[tuple[int, InputRule]]:
    """By buffer, the rules of one call; a copy's are those of its result."""
    if not isinstance(call.operator, OpOverload):
        return
    name = schema_of(call.operator).name.removesuffix("_")
    arguments = _Arguments(call, graph)
    if name in _COPIES and call.results[0] is not None and isinstance(call.args[0], ValueRef):
        rule = rules.get(graph.values.buffer[call.results[0]])
        if rule is not None:
            yield graph.values.buffer[call.args[0].value], rule
    for argument, make in _RULES.get(name, ()):
        for reference, rule in make(arguments, argument):
            yield graph.values.buffer[reference.value], rule


class _Arguments:
    """Arguments of a call by name, and sizes of its tensors."""

    def __init__(self, call: Call, graph: Graph) -> None:
        self._operator = call.operator
        self._values = arguments_by_name(call.operator, call.args, dict(call.kwargs))
        self._graph = graph

    def __getitem__(self, name: str) -> Any:
        return self._values[name] if name in self._values else default_of(self._operator, name)

    def references(self, name: str) -> tuple[ValueRef, ...]:
        """The tensors of an argument that is a tensor, a list of such, or left out."""
        value = self[name]
        values = value if isinstance(value, (list, tuple)) else (value,)
        return tuple(item for item in values if isinstance(item, ValueRef))

    def shape(self, reference: ValueRef) -> tuple[int, ...]:
        """The sizes of a tensor."""
        return self._graph.values.shape[reference.value]

    def dtype(self, reference: ValueRef) -> str:
        """The dtype of a tensor."""
        return self._graph.values.dtype[reference.value]

    def size(self, name: str, axis: int) -> int:
        """The size of the tensor ``name`` along an axis; 1 for a number."""
        (reference,) = self.references(name)
        shape = self.shape(reference)
        return shape[axis] if shape else 1

    def count(self, name: str) -> int:
        """Elements of the tensor ``name``."""
        (reference,) = self.references(name)
        return prod(self.shape(reference))


_Rules: TypeAlias = Iterator[tuple[ValueRef, InputRule]]
_Row: TypeAlias = tuple[str, Callable[[_Arguments, str], _Rules]]


def _below_size(arguments: _Arguments, name: str, *, of: str, axis: int | str = 0) -> _Rules:
    """Positions along an axis of the tensor ``of``; the axis by number, or by the argument that says it."""
    number = arguments[axis] if isinstance(axis, str) else axis
    return ((reference, Below(arguments.size(of, number))) for reference in arguments.references(name))


def _below_count(arguments: _Arguments, name: str, *, of: str) -> _Rules:
    return ((reference, Below(arguments.count(of))) for reference in arguments.references(name))


def _below_sizes(arguments: _Arguments, name: str) -> _Rules:
    """Positions along the axes of ``self``, one list item for each; a mask stands for as many as it has itself."""
    axis = 0
    for item in arguments[name]:
        is_mask = isinstance(item, ValueRef) and arguments.dtype(item) in ("bool", "uint8")
        if isinstance(item, ValueRef) and not is_mask:
            yield item, Below(arguments.size("self", axis))
        axis += len(arguments.shape(item)) if is_mask else 1


def _below_classes(arguments: _Arguments, name: str) -> _Rules:
    """Classes: the second axis of a batch, the only one of a sample."""
    (scores,) = arguments.references("self")
    axis = min(1, len(arguments.shape(scores)) - 1)
    return _below_size(arguments, name, of="self", axis=axis)


def _bags(arguments: _Arguments, name: str) -> _Rules:
    rule = Offsets(arguments.count("indices"), closed=bool(arguments["include_last_offset"]))
    return ((reference, rule) for reference in arguments.references(name))


def _segments(arguments: _Arguments, name: str) -> _Rules:
    total = arguments.size("data", arguments["axis"] or 0)
    rule = Lengths(total) if name == "lengths" else Offsets(total)
    return ((reference, rule) for reference in arguments.references(name))


def _rows(arguments: _Arguments, name: str, *, total: Callable[[_Arguments], int]) -> _Rules:
    """Offsets of jagged tensors: each list counts the rows of the next, the last those of the values."""
    references = arguments.references(name)
    counts = [arguments.shape(reference)[0] - 1 for reference in references[1:]]
    totals = (*counts, total(arguments))
    return ((reference, Offsets(count)) for reference, count in zip(references, totals, strict=False))


def _shares(arguments: _Arguments, name: str) -> _Rules:
    return ((reference, Shares()) for reference in arguments.references(name))


def _draws_of_itself(arguments: _Arguments, name: str) -> _Rules:
    """The chances of ``bernoulli`` are its argument, where no number ``p`` is."""
    return iter(()) if arguments["p"] is not None else _shares(arguments, name)


_COPIES: Final = frozenset({"aten::_to_copy", "aten::clone", "aten::lift_fresh_copy"})
_ALONG_DIM: Final = ("index", partial(_below_size, of="self", axis="dim"))
_TARGETS: Final = ("target", _below_classes)
_LOOKUP: Final = ("indices", partial(_below_size, of="weight"))
_BAG_ROWS: Final[tuple[_Row, ...]] = (_LOOKUP, ("offsets", _bags))
_ITEMS: Final[tuple[_Row, ...]] = (("indices", _below_sizes),)
_CROSS_ENTROPY: Final[tuple[_Row, ...]] = (("self", _shares), ("target", _shares))
_OF_VALUES: Final = partial(_rows, total=lambda arguments: arguments.size("values", 0))
_OF_TOTAL: Final = partial(_rows, total=lambda arguments: arguments["total_L"] or arguments.size("dense", 0))
_OF_QUERIES: Final = partial(_rows, total=lambda arguments: arguments.size("query", -3))
_OF_KEYS: Final = partial(_rows, total=lambda arguments: arguments.size("key", -3))

_RULES: Final[Mapping[str, tuple[_Row, ...]]] = MappingProxyType(
    {
        "aten::embedding": (_LOOKUP,),
        "aten::_embedding_bag": _BAG_ROWS,
        "aten::_embedding_bag_forward_only": _BAG_ROWS,
        "aten::gather": (_ALONG_DIM,),
        "aten::scatter": (_ALONG_DIM,),
        "aten::scatter_add": (_ALONG_DIM,),
        "aten::scatter_reduce": (_ALONG_DIM,),
        "aten::index_select": (_ALONG_DIM,),
        "aten::index_add": (_ALONG_DIM,),
        "aten::index_copy": (_ALONG_DIM,),
        "aten::index_fill": (_ALONG_DIM,),
        "aten::index_reduce": (_ALONG_DIM,),
        "aten::take": (("index", partial(_below_count, of="self")),),
        "aten::put": (("index", partial(_below_count, of="self")),),
        "aten::index": _ITEMS,
        "aten::_unsafe_index": _ITEMS,
        "aten::index_put": _ITEMS,
        "aten::_unsafe_index_put": _ITEMS,
        "aten::nll_loss_forward": (_TARGETS,),
        "aten::nll_loss2d_forward": (_TARGETS,),
        "aten::multi_margin_loss": (_TARGETS,),
        "aten::segment_reduce": (("lengths", _segments), ("offsets", _segments)),
        "aten::_jagged_to_padded_dense_forward": (("offsets", _OF_VALUES),),
        "aten::_padded_dense_to_jagged_forward": (("offsets", _OF_TOTAL),),
        "aten::_flash_attention_forward": (("cum_seq_q", _OF_QUERIES), ("cum_seq_k", _OF_KEYS)),
        "aten::_efficient_attention_forward": (("cu_seqlens_q", _OF_QUERIES), ("cu_seqlens_k", _OF_KEYS)),
        "aten::multinomial": (("self", _shares),),
        "aten::bernoulli": (("self", _draws_of_itself), ("p", _shares)),
        "aten::binary_cross_entropy": _CROSS_ENTROPY,
    }
)
"""By operator, in place or not: the argument, and what is asked of it."""
