"""The forms of a step: as it is, with its head in parts, and with chains in parts.

Each with its updates right after their gradients or not.

A form is rebuilt once; its orders are orders of the rows of its graph.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tmmu.ir.graph import GRADIENT, Graph
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import SAME, Rewrite, identity_rewrite
from tmmu.planner.fit.chains.chain_parts import chain_parts
from tmmu.planner.fit.early_updates import SMALLEST_GROUP, early_order, grouped_updates
from tmmu.planner.fit.head_parts import head_parts
from tmmu.planner.fit.orders import ORDERS, Order, row_uses
from tmmu.planner.fit.step_facts import StepFacts, step_facts

TAKEOVER: Final = "takeover"
ORDER: Final = "order"
UPDATES: Final = "updates"
PARTS: Final = "parts"
RECOMPUTE: Final = "recompute"
OFFLOAD: Final = "offload"
LEVERS: Final[tuple[tuple[str, str], ...]] = (
    (TAKEOVER, "results take over the bytes of operands that die"),
    (ORDER, "ops run in another order"),
    (UPDATES, "each weight is updated right after its gradient"),
    (PARTS, "head and loss, or layers, run on some rows at a time"),
    (RECOMPUTE, "what is needed again is computed again"),
    (OFFLOAD, "what is needed later is kept in host memory"),
)
"""Least harm first: a name, and what it does. None changes a bit of what the step computes, unless what is only near is
allowed: then the gradient of the head's weights is summed over parts.
"""
FREE_NAMES: Final = tuple(name for name, _ in LEVERS if name not in (RECOMPUTE, OFFLOAD))
"""Those without which nothing runs again and nothing leaves the device."""
ON_REQUEST: Final = (OFFLOAD,)
"""Levers that are pulled where they are named alone: they take memory and a link that the step does not know."""
ALL_NAMES: Final = tuple(name for name, _ in LEVERS)
LEVER_NAMES: Final = tuple(name for name in ALL_NAMES if name not in ON_REQUEST)
"""Those that are pulled where none are named."""
HEAD_PARTS: Final = (8, 16)
"""Parts that a head is cut in, at least: fewer read the weights less often."""
CHAIN_PARTS: Final = (4, 16)
CHAINS: Final[tuple[dict[str, bool], ...]] = (
    {"by_rows": False, "is_long": True},
    {"by_rows": False, "is_long": False},
    {"by_rows": True, "is_long": False},
)
"""Of a step without gradients: parts that chains are cut in, at most, and which chains."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """The step as ``rewrite`` makes it of the base, with its ops in the order ``first`` until another is tried."""

    rewrite: Rewrite
    facts: StepFacts
    first: Order

    @cached_property
    def orders(self) -> tuple[tuple[str, Order], ...]:
        """By name, each order once."""
        uses, names = row_uses(self.facts, self.first), dict[Order, str]()
        for name, order in ORDERS:
            names.setdefault(order(uses), name)
        return tuple((name, order) for order, name in names.items())

    def orders_of(self, levers: Collection[str]) -> tuple[tuple[str, Order], ...]:
        """Those that these levers allow, the first one first."""
        return self.orders if ORDER in levers else ((ORDERS[0][0], self.first),)


@dataclass(kw_only=True)
class StepForms:
    """The forms of a legal graph with calls, each made once for all levers. ``near``: sums may be near."""

    base: Graph
    arenas: tuple[ArenaSpec, ...]
    near: bool
    _forms: dict[tuple[bool, Rewrite], Form] = field(default_factory=dict)

    def of(self, levers: Collection[str]) -> list[Form]:
        """The step as it is, then, where levers allow it, with its head or its chains in parts."""
        whole = self.whole.rewrite
        cut = [parts for parts in self._parts if parts != whole] if PARTS in levers else []
        return [self._form(rewrite, updates=UPDATES in levers) for rewrite in (whole, *cut)]

    @cached_property
    def whole(self) -> Form:
        """The base itself."""
        rewrite = identity_rewrite(self.base)
        facts = step_facts(self.base, self.arenas)
        return Form(rewrite=rewrite, facts=facts, first=tuple(self.base.ops.ids))

    @cached_property
    def _parts(self) -> list[Rewrite]:
        heads = (head_parts(self.base, count, near=self.near) for count in HEAD_PARTS)
        chains = (chain_parts(self.base, count, **which) for which in CHAINS for count in CHAIN_PARTS)
        return [*dict.fromkeys((*heads, *chains))]

    def _form(self, rewrite: Rewrite, *, updates: bool) -> Form:
        """A rewrite, with lists of updates in groups where ``updates`` are early."""
        if (updates, rewrite) not in self._forms:
            self._forms[updates, rewrite] = self._new_form(rewrite, early=updates)
        return self._forms[updates, rewrite]

    def _new_form(self, rewrite: Rewrite, *, early: bool) -> Form:
        grouped = grouped_updates(self.base, rewrite, smallest=self._smallest_group) if early else rewrite
        if grouped == self.whole.rewrite:
            return self.whole
        graph = rebuild_graph(self.base, grouped)
        facts = step_facts(graph, self.arenas, may_rerun=[kind == SAME for kind in grouped.kind])
        first = early_order(grouped, facts.after) if early else tuple(graph.ops.ids)
        return Form(rewrite=grouped, facts=facts, first=first)

    @cached_property
    def _smallest_group(self) -> int:
        """Bytes of a group of parameters: a hundredth of all gradients, where that is less than usual."""
        buffers = self.base.buffers
        gradients = sum(b for b, role in zip(buffers.bytes, buffers.role, strict=True) if role == GRADIENT)
        return min(SMALLEST_GROUP, max(1, gradients // 100))
