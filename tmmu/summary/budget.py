"""What a budget for a device leaves for the stack of a step."""

from tmmu.errors import BudgetTooSmall
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import readable_size
from tmmu.summary.plan_summary import memory_of


def stack_room(plan: Plan, graph: Graph, budget: int, reserve: int) -> int:
    """Bytes of ``budget`` that weights, state, inputs and ``reserve`` leave; ``BUDGET_TOO_SMALL`` where none are."""
    memory = memory_of(plan, graph)
    beside = memory.total - memory.stack
    left = budget - reserve - beside
    if left < 0:
        raise BudgetTooSmall(
            f"weights, state and inputs take {readable_size(beside)}, with the reserve of {readable_size(reserve)} "
            f"more than the budget of {readable_size(budget)}: {readable_size(-left)} too few before the step begins",
            fix="give a larger budget or a smaller reserve; where weights are most of it, stream them: tmmu ring",
            beside_bytes=beside,
            short=-left,
        )
    return left
