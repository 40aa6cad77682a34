"""Attention in a graph: one operator of a library, or a product of queries and keys, a softmax, a product with values.

An attention is *self* where queries and keys are projected from one tensor, and *cross* where they are not: both are
followed back to their projection and on to the sum, attention or tensor that it is made of. Linear: every walk takes
at most ``WALK_MAX`` steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import CONSTANT, INPUT, STATE
from tmmu.passes.semantics.dataflow import ROOT, Dataflow
from tmmu.passes.semantics.families import ATTENTION, PRODUCT, SOFTMAX, base_name, family_of, passes_through

WALK_MAX: Final = 64
"""Ops between an attention and the tensor that it projects: rotary positions and low-rank products take some thirty."""
SCORES_MAX: Final = 16
"""Ops between a softmax and either product: scale, mask, position bias, cast, dropout."""
_COMPARISONS: Final = frozenset({"le", "lt", "ge", "gt"})
_TRIANGLES: Final = frozenset({"tril", "triu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention: its ops from scores to result, the ops that project its operands, its cache, its lengths.

    ``query`` is a value. ``key_paths``: ops from the projections of keys and values to the scores, where these are
    not also on the way of the queries. ``cache_ops``: ops that write keys or values into what outlives the step, or
    join them to what the caller keeps; ``cache``: the buffers that hold them.
    """

    core: tuple[int, ...]
    query: int
    query_path: tuple[int, ...]
    key_paths: tuple[int, ...]
    cache_ops: tuple[int, ...]
    cache: tuple[int, ...]
    query_length: int
    key_length: int
    is_cross: bool
    is_masked_causally: bool
    """Whether the mask among its operands is triangular; what the operator is told by a flag is no part of a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """The middle of an attention: ops, and the values that it is computed from."""

    ops: tuple[int, ...]
    query: int
    key: int
    value: int
    masks: tuple[int, ...]
    lengths: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Back from an operand: ops up to its projection, all that was passed, and caches on the way."""

    path: tuple[int, ...]
    origin: frozenset[int]
    """Ops from the projection back to what it projects; a tensor that is there from the start as ``-2 - buffer``."""
    cache_ops: tuple[int, ...]
    cache: tuple[int, ...]


def find_attentions(flow: Dataflow) -> tuple[Attention, ...]:
    """Every attention of the forward stage, in order."""
    triangular = _triangular_ops(flow)
    stage = flow.graph.ops.stage
    cores = (_core_of(flow, op) for op in flow.order if stage[op] == "forward")
    return tuple(_attention(flow, core, triangular) for core in cores if core is not None)


def _core_of(flow: Dataflow, op: int) -> _Core | None:
    target = flow.graph.ops.target[op]
    if family_of(target) == ATTENTION:
        return _fused_core(flow, op)
    return _composed_core(flow, op) if family_of(target) == SOFTMAX else None


def _fused_core(flow: Dataflow, op: int) -> _Core | None:
    """Operands of one operator. Equal operands are read once, so keys may be the queries, and values the keys."""
    shape, reads = flow.graph.values.shape, flow.graph.ops.reads[op]
    if not reads or len(shape[reads[0]]) < 3:
        return None
    query, *others = reads
    key = others.pop(0) if others and _fits(shape[others[0]], shape[query], axis=-1) else query
    value = others.pop(0) if others and _fits(shape[others[0]], shape[key], axis=-2) else key
    return _Core(
        ops=(op,),
        query=query,
        key=key,
        value=value,
        masks=tuple(others),
        lengths=(shape[query][-2], shape[key][-2]),
    )


def _fits(shape: tuple[int, ...], like: tuple[int, ...], *, axis: int) -> bool:
    return len(shape) == len(like) and shape[axis] == like[axis] and shape[0] == like[0]


def _composed_core(flow: Dataflow, softmax: int) -> _Core | None:
    """Scores back to the product of two computed tensors, weights on to the product with the values."""
    before, masks = _scores_before(flow, softmax)
    after = _weights_after(flow, softmax)
    if not before or not after:
        return None
    shape, ops = flow.graph.values.shape, (*reversed(before), softmax, *after)
    query, key = _factors(flow, before[-1])
    inside = set(ops)
    values = [v for v in flow.graph.ops.reads[after[-1]] if flow.writer[v] not in inside]
    result = shape[flow.result(before[-1])]
    return _Core(
        ops=ops,
        query=query,
        key=key,
        value=values[0] if values else key,
        masks=tuple(masks),
        lengths=(result[-2], result[-1]) if len(result) > 1 else (1, 1),
    )


def _factors(flow: Dataflow, product: int) -> tuple[int, ...]:
    """The two factors of a product; a sum that it starts from (``baddbmm``) is left out. Empty: none is read."""
    reads = flow.graph.ops.reads[product]
    factors = reads[1:] if base_name(flow.graph.ops.target[product]) in {"baddbmm", "addmm"} else reads
    return (factors[0], factors[-1]) if factors else ()


def _is_score_product(flow: Dataflow, op: int) -> bool:
    """Whether an op multiplies two tensors of which neither is a weight."""
    if family_of(flow.graph.ops.target[op]) != PRODUCT or not flow.graph.ops.writes[op]:
        return False
    factors = _factors(flow, op)
    return bool(factors) and not any(flow.is_weight(value) and flow.role(value) != STATE for value in factors)


def _scores_before(flow: Dataflow, softmax: int) -> tuple[list[int], list[int]]:
    """Ops from the one before a softmax back to the product of queries and keys, and what masks the scores."""
    path: list[int] = []
    masks: list[int] = []
    value = flow.main_operand(softmax)
    while len(path) < SCORES_MAX and value >= 0 and (op := flow.writer[value]) != ROOT:
        path.append(op)
        if _is_score_product(flow, op):
            return path, masks
        if not passes_through(flow.graph.ops.target[op]):
            break
        value = flow.main_operand(op)
        masks += [read for read in flow.graph.ops.reads[op] if read != value]
    return [], []


def _weights_after(flow: Dataflow, softmax: int) -> list[int]:
    """Ops from the one after a softmax on to the product with the values; empty where none is near."""
    path: list[int] = []
    op = softmax
    while len(path) < SCORES_MAX:
        readers = tuple(dict.fromkeys(flow.consumers(op)))
        following = next((r for r in readers if _is_score_product(flow, r)), None)
        if following is not None:
            return [*path, following]
        following = next((r for r in readers if passes_through(flow.graph.ops.target[r])), None)
        if following is None:
            break
        path.append(following)
        op = following
    return []


def _attention(flow: Dataflow, core: _Core, triangular: frozenset[int]) -> Attention:
    query = _walk_back(flow, core.query)
    keys = (_walk_back(flow, core.key), _walk_back(flow, core.value))
    own = {*core.ops, *query.path}
    return Attention(
        core=core.ops,
        query=core.query,
        query_path=query.path,
        key_paths=tuple(dict.fromkeys(op for walk in keys for op in walk.path if op not in own)),
        cache_ops=tuple(dict.fromkeys(op for walk in keys for op in walk.cache_ops)),
        cache=tuple(dict.fromkeys(buffer for walk in keys for buffer in walk.cache)),
        query_length=core.lengths[0],
        key_length=core.lengths[1],
        is_cross=query.origin.isdisjoint(keys[0].origin),
        is_masked_causally=any(_is_causal_mask(flow, mask, core, triangular) for mask in core.masks),
    )


def _walk_back(flow: Dataflow, value: int) -> _Walk:
    path: list[int] = []
    origin: list[int] = []
    cache_ops: list[int] = []
    cache: list[int] = []
    for _ in range(WALK_MAX):
        op = flow.writer[value]
        buffer = flow.graph.values.buffer[value]
        if op == ROOT:
            origin.append(-2 - buffer)
            if flow.role(value) == STATE:
                cache.append(buffer)
            break
        if _extends_cache(flow, op):
            cache_ops.append(op)
            cache += _cache_buffers(flow, op)
        (origin or path).append(op)
        if _is_end(flow, op, is_projected=bool(origin)):
            origin.append(op)
            break
        if not origin and _is_projection(flow, op):
            origin.append(op)
        value = flow.main_operand(op)
        if value < 0:
            break
    # What no weight projects is made of all that was passed.
    return _Walk(path=tuple(path), origin=frozenset(origin or path), cache_ops=tuple(cache_ops), cache=tuple(cache))


def _is_projection(flow: Dataflow, op: int) -> bool:
    return family_of(flow.graph.ops.target[op]) in {PRODUCT, "convolution"}


def _is_end(flow: Dataflow, op: int, *, is_projected: bool) -> bool:
    """Whether a walk ends here: another attention, or, behind the projection, the sum of a residual stream."""
    target = flow.graph.ops.target[op]
    if family_of(target) in {ATTENTION, SOFTMAX}:
        return True
    return is_projected and base_name(target) in {"add", "add_"} and _adds_two(flow, op)


def _adds_two(flow: Dataflow, op: int) -> bool:
    """Whether both terms were computed, and are as large as the sum."""
    size = flow.elements[flow.result(op)]
    terms = [v for v in flow.graph.ops.reads[op] if flow.writer[v] != ROOT and flow.elements[v] == size]
    return len(terms) > 1


def _extends_cache(flow: Dataflow, op: int) -> bool:
    """Whether an op writes state, or joins what it is given to what the caller or the session keeps."""
    if any(flow.role(value) == STATE for value in flow.graph.ops.writes[op]):
        return True
    reads = flow.graph.ops.reads[op]
    return base_name(flow.graph.ops.target[op]) == "cat" and any(_is_kept(flow, value) for value in reads)


def _is_kept(flow: Dataflow, value: int) -> bool:
    return flow.writer[value] == ROOT and flow.role(value) in {INPUT, STATE}


def _cache_buffers(flow: Dataflow, op: int) -> Iterator[int]:
    values = flow.graph.values
    for value in (*flow.graph.ops.writes[op], *flow.graph.ops.reads[op]):
        if flow.role(value) == STATE or _is_kept(flow, value):
            yield values.buffer[value]


def _is_causal_mask(flow: Dataflow, mask: int, core: _Core, triangular: frozenset[int]) -> bool:
    """A mask that compared positions, or a square table of the model (``tril`` as a buffer)."""
    op = flow.writer[mask]
    if op != ROOT:
        return op in triangular
    shape = flow.graph.values.shape[mask]
    is_square = len(shape) > 1 and shape[-2:] == core.lengths and shape[-1] > 1
    return flow.role(mask) == CONSTANT and is_square


def _triangular_ops(flow: Dataflow) -> frozenset[int]:
    """Ops whose result is triangular: ``tril``, ``triu``, positions compared with positions, and what is made of them.

    Positions are integers that depend on no embedding, product or other work on the caller's tensors.
    """
    graph = flow.graph
    triangular: set[int] = set()
    for op in flow.order:
        name, reads = base_name(graph.ops.target[op]).removesuffix("_"), graph.ops.reads[op]
        compares = name in _COMPARISONS and len(reads) > 1 and all(_is_position(flow, value) for value in reads)
        if (
            name in _TRIANGLES
            or compares
            or (passes_through(graph.ops.target[op]) and any(flow.writer[value] in triangular for value in reads))
        ):
            triangular.add(op)
    return frozenset(triangular)


def _is_position(flow: Dataflow, value: int) -> bool:
    """Whether a value counts: whole numbers, whose differences (a window of distances) were not taken."""
    if not flow.graph.values.dtype[value].startswith(("int", "uint")):
        return False
    op = flow.writer[value]
    return op == ROOT or base_name(flow.graph.ops.target[op]) not in {"abs", "abs_", "sub", "rsub"}
