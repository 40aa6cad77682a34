"""One small program that has everything the judge looks at, and plans of it."""

from dataclasses import replace
from functools import cache
from typing import Any

from tests.strategies import Builder
from tmmu.ir.call_text import LIST, NUMBER, TENSOR, Argument, CallText, encode_call, encode_float, encode_number
from tmmu.ir.fit import FitCost, FitRecord, FusedRecord
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.ids import OpId
from tmmu.ir.lifetimes import CYCLE, EagerRun, Lifetimes
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.ir.rewrite import RERUN, SAME, SUBLIST, TWIN, Rewrite
from tmmu.planner.prepare import prepare_memory

TOKEN = bytes(range(64))
X, W, C, S, A0, A1, A2, K, A3, OUT, G3, G1 = range(12)
"""Buffers: input, parameter, constant, state, activations (K is scratch), gradients."""


@cache
def graph() -> Graph:
    """Six forward ops (an elementwise one, a KV-cache update) and two backward ones."""
    b = Builder()
    roles = ("input", "parameter", "constant", "state", "activation", "activation")
    for role in roles:
        b.buffer(role, (16,) if role == "state" else (8,))
    for role, n in (("activation", 100), ("scratch", 40), ("activation", 8), ("activation", 8)):
        b.buffer(role, (n,))
    b.buffer("gradient")
    b.buffer("gradient")
    b.op([X, W], [A0])
    b.op([A0], [A1], in_place=[(A1, A0)], saves=[A1])
    b.op([A1], [], [(S, (16, (8,), (1,), "float32"))], target="cache.update")
    b.op([S, A1], [A2], saves=[A2], recompute=True)
    b.op([A2, W], [A3, K])
    b.op([A3, C], [OUT], in_place=[(OUT, A3)])
    b.op([OUT, A2], [G3], stage="backward")
    b.op([G3, A1], [G1], in_place=[(G1, G3)], stage="backward")
    return b.build([OUT, S, G1])


@cache
def described_graph() -> Graph:
    """The same with calls, number inputs in the last op, and the lifetimes of three storages of eager's."""
    base = graph()
    operands = tuple((*reads, *writes[:1]) for reads, writes in zip(base.ops.reads, base.ops.writes, strict=True))
    texts: dict[bytes, int] = {}
    call = []
    for op, target in enumerate(base.ops.target):
        arguments: list[Argument] = [[TENSOR, 0] for _ in base.ops.reads[op]]
        arguments += [[NUMBER]] if op == 7 else [3, [LIST, encode_float(0.5), []], ["dtype", "float32"]]
        text = encode_call(CallText(operator=target, arguments=tuple(arguments), results=(True,)))
        call.append(texts.setdefault(text, len(texts)))
    calls = OpCalls(
        texts=tuple(texts),
        call=tuple(call),
        operands=operands,
        effect=("pure", "pure", "state", *["pure"] * 4, "once"),
        numbers=(*((),) * 7, (encode_number(encode_float(0.1)),)),
    )
    return replace(base, calls=calls, notes=replace(base.notes, eager=eager_run()))


def eager_run() -> EagerRun:
    """Three storages: one held by a function, one by a cycle, one that is used at once; and one on the host."""
    storages = Lifetimes(
        bytes=(64, 256, 16),
        birth=(0, 1, 4),
        death=(3, 6, 5),
        last_use=(1, 4, 4),
        maker=("aten.mul.Tensor", "aten.relu.default", "aten.sum.default"),
        module=("", "block", ""),
        source=("net.py:3", "net.py:4", ""),
        holder=("forward of net.py:3 until it returns", CYCLE, ""),
        stream=(0, 2, 1),
    )
    host = Lifetimes(
        bytes=(32,),
        birth=(2,),
        death=(4,),
        last_use=(3,),
        maker=("aten._to_copy.default",),
        module=("",),
        source=("net.py:5",),
        holder=("",),
    )
    return EagerRun(
        python="3.12", calls=6, persistent_bytes=128, storages=storages, host=host, in_parts=("Block",), own_step=True
    )


def arenas(layout: str = "packed", alignment: int = 64) -> tuple[ArenaSpec, ...]:
    names = (("parameters", "text"), ("state", "data"), ("activations", "stack"), ("gradients", "stack"))
    return tuple(
        ArenaSpec(name=n, segment=s, layout=layout if s == "stack" else "sequential", alignment=alignment)
        for n, s in names
    )


@cache
def plan(mode: str = "inference", preset: str = "inference", layout: str = "packed") -> Plan:
    return prepare_memory(graph(), mode=mode, preset=preset, token=TOKEN, arenas=arenas(layout))


@cache
def fit_record() -> FitRecord:
    """What a plan of eight ops says: one runs again, one without its effects, two are parts of lists."""
    rewrite = Rewrite(
        base_hash=bytes(range(32)),
        origin=tuple(map(OpId, (0, 1, 2, 0, 3, 1, 4, 4))),
        kind=(SAME, SAME, SAME, RERUN, SAME, TWIN, SUBLIST, SUBLIST),
        part=((), (), (), (), (), (), (0, 2), (2, 5)),
    )
    cost = FitCost(flops=1 << 40, bytes=96, time_ppm=12_345)
    return FitRecord(rewrite=rewrite, cost=cost, budget_bytes=1 << 34, levers=("order", "early updates"))


def fused(base: Plan | None = None, **columns: Any) -> Plan:
    """The plan with a key ``fit`` whose graph was fused since."""
    record = FusedRecord(rewritten_hash=bytes(range(1, 33)), apart=("0123456789abcdef0123", "f" * 20))
    return replace(base or plan(), fit=replace(fit_record(), fused=record), **columns)


def fitted(base: Plan | None = None, **columns: Any) -> Plan:
    """The plan with the key ``fit``."""
    return replace(base or plan(), fit=fit_record(), **columns)


def edit(thing: Any, path: str, value: object, index: int | None = None) -> Any:
    """``thing`` with the field at ``path``, or one cell of that column, replaced."""
    name, _, inner_path = path.partition(".")
    if inner_path:
        return replace(thing, **{name: edit(getattr(thing, name), inner_path, value, index)})
    if index is not None:
        column = list(getattr(thing, name))
        column[index] = value
        value = tuple(column)
    return replace(thing, **{name: value})


def row(base: Plan, buffer: int) -> int:
    return base.buffers.id.index(buffer)


def move(base: Plan, buffer: int, offset: int) -> Plan:
    return edit(base, "buffers.offset", offset, row(base, buffer))


def without(base: Plan, buffer: int) -> Plan:
    """The plan without its row of ``buffer``."""
    index = row(base, buffer)
    table = base.buffers
    columns = {name: getattr(table, name)[:index] + getattr(table, name)[index + 1 :] for name in type(table).__slots__}
    return replace(base, buffers=replace(table, **columns))
