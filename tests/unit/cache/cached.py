"""A small program and keys to store it under."""

from functools import cache

from tests.unit.cli.graphs import small
from tmmu.ir.graph import Graph
from tmmu.ir.key import Key, key_of, part_of
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

TOKEN = token_from_seed(0)


@cache
def program(preset: str = "inference") -> tuple[Graph, Plan]:
    graph = small()
    return graph, prepare_memory(graph, mode="inference", preset=preset, token=TOKEN, arenas=parse_arenas(()))


def key(number: int = 0, **parts: object) -> Key:
    return key_of([part_of("number", number), *(part_of(name, content) for name, content in parts.items())])


class CountingMaker:
    """A ``make`` that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[Graph, Plan]:
        self.calls += 1
        return program()
