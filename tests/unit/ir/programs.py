"""Small programs as text, to be edited the way a model is: a line for each buffer, its number the source of its op.

``input x 4``, ``parameter w 16``, ``state s 4``: a persistent buffer of so many KiB. ``a 8 = mlp.up mm x w``: an op of
module ``mlp.up`` that makes ``a``; ``over x`` lets it compute ``a`` in place of ``x``, ``backward`` is its stage.
``return a``: the outputs. A ``.`` is no module.
"""

from dataclasses import replace

from tests.strategies import Builder
from tmmu.compare.match import PlannedGraph
from tmmu.ir.graph import Graph, Notes, OpNotes
from tmmu.judge.check import check_plan
from tmmu.judge.rules import require_legal
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

PERSISTENT = ("input", "parameter", "constant", "state")


def program(text: str, name: str = "net") -> Graph:
    """The graph that the text says."""
    b, ids, names, modules, sources = Builder(), dict[str, int](), list[str](), list[str](), list[str]()
    outputs: list[int] = []
    for number, line in enumerate(text.strip().splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if words[0] in PERSISTENT:
            ids[words[1]] = b.buffer(words[0], (256 * int(words[2]),))
            names.append(words[1])
        elif words[0] == "return":
            outputs = [ids[word] for word in words[1:]]
        else:
            _op(b, ids, words)
            modules.append("" if words[3] == "." else words[3])
            sources.append(f"{name}.py:{number}")
            names.append("")
    n = len(modules)
    ops = OpNotes(
        phase=("unknown",) * n, modality=("unknown",) * n, flops=(0,) * n, module=tuple(modules), source=tuple(sources)
    )
    graph = replace(b.build(outputs), notes=Notes(name=name, buffers=tuple(names), ops=ops))
    require_legal(graph)
    return graph


def _op(b: Builder, ids: dict[str, int], words: list[str]) -> None:
    result, kib, _, _, target, *arguments = words
    stage = arguments.pop() if arguments[-1:] == ["backward"] else "forward"
    over = arguments.index("over") if "over" in arguments else len(arguments)
    reads, taken = [ids[word] for word in arguments[:over]], [ids[word] for word in arguments[over + 1 :]]
    ids[result] = b.buffer("activation", (256 * int(kib),))
    b.op(reads, [ids[result]], in_place=[(ids[result], argument) for argument in taken], target=target, stage=stage)


def plan_program(
    graph: Graph | str, *, mode: str = "inference", preset: str = "inference", arenas: tuple[str, ...] = ()
) -> PlannedGraph:
    """A graph with a sound plan of it."""
    graph = program(graph) if isinstance(graph, str) else graph
    token = token_from_seed(0)
    plan = prepare_memory(graph, mode=mode, preset=preset, token=token, arenas=parse_arenas(arenas))
    assert not check_plan(graph, plan, token=token)
    return PlannedGraph(graph=graph, plan=plan)
