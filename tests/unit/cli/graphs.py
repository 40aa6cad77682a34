"""Small graphs written by hand, and a ``Shell`` that runs the command line on them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tmmu.cli.app import run
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values, encode_graph


def small() -> Graph:
    """Two matrix products around a relu, an update of a cache, and a sum: every role but gradient and scratch."""
    f32 = ("float32",) * 9
    shape = ((4, 256), (256, 1024), (1024, 256), (4, 256), (4, 1024), (4, 1024), (4, 256), (4, 256), (4, 256))
    return Graph(
        target="cpu",
        buffers=Buffers(
            bytes=(4096, 1 << 20, 1 << 20, 4096, 16384, 16384, 4096, 4096),
            role=("input", "parameter", "parameter", "state", "activation", "activation", "activation", "activation"),
        ),
        values=Values(
            buffer=(0, 1, 2, 3, 4, 5, 6, 3, 7),
            offset=(0,) * 9,
            shape=shape,
            stride=tuple((columns, 1) for _, columns in shape),
            dtype=f32,
        ),
        ops=Ops(
            target=("aten.mm", "aten.relu", "aten.mm", "aten.copy_", "aten.add"),
            reads=((0, 1), (4,), (5, 2), (6,), (6, 7)),
            writes=((4,), (5,), (6,), (7,), (8,)),
            overwrites=((), ((5, 4),), (), (), ((8, 6),)),
            saves=((0, 1), (5,), (5, 2), (), ()),
            recompute=(False,) * 5,
            stage=("forward",) * 5,
        ),
        inputs=(0,),
        outputs=(8,),
        notes=Notes(
            name="small",
            buffers=("x", "first.weight", "second.weight", "cache", "", "", "", ""),
            ops=OpNotes(
                phase=("forward",) * 5,
                modality=("unknown",) * 5,
                flops=(2097152, 0, 2097152, 0, 0),
                module=("first", "act", "second", "cache", ""),
                source=("small.py:7", "small.py:8", "small.py:9", "small.py:10", "small.py:11"),
            ),
        ),
    )


def leaving_its_buffer() -> Graph:
    """The first activation is smaller than the window on it."""
    graph = small()
    sizes = tuple(8 if buffer == 4 else size for buffer, size in enumerate(graph.buffers.bytes))
    return replace(graph, buffers=replace(graph.buffers, bytes=sizes))


def circular() -> Graph:
    """A cycle: the first product reads the result of the relu."""
    graph = small()
    return replace(graph, ops=replace(graph.ops, reads=((0, 1, 5), *graph.ops.reads[1:])))


def nothing_to_do() -> Graph:
    """One input, returned; no ops."""
    graph = small()
    none: tuple[tuple[int, ...], ...] = ()
    return replace(
        graph,
        buffers=Buffers(bytes=(4096,), role=("input",)),
        values=Values(buffer=(0,), offset=(0,), shape=((4, 256),), stride=((256, 1),), dtype=("float32",)),
        ops=Ops(target=(), reads=none, writes=none, overwrites=(), saves=none, recompute=(), stage=()),
        outputs=(0,),
        notes=Notes(name="less", buffers=("x",), ops=OpNotes(phase=(), modality=(), flops=(), module=(), source=())),
    )


@dataclass(frozen=True, slots=True)
class Done:
    """Exit code and streams of one run of the program."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)


class Shell:
    """A folder to run the program in."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def tmmu(self, *arguments: object) -> Done:
        """Run in this process; stdout and stderr are not terminals."""
        self._capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def graph(self, graph: Graph, name: str = "small") -> Path:
        """Write an IR file; its path, relative to the folder."""
        path = Path(f"{name}.ir.cbor")
        path.write_bytes(encode_graph(graph))
        return path

    def plan(self, *arguments: object) -> Path:
        """Plan the small graph; the plan's path, its graph beside it."""
        ir = self.graph(small(), "given")
        done = self.tmmu("plan", ir, "-o", "small.plan.cbor", *arguments)
        assert done.code == 0, done.err
        return Path("small.plan.cbor")

    def files(self) -> tuple[str, ...]:
        """Names of all files in the folder, but for what Python makes of a module that it imports."""
        return tuple(sorted(path.name for path in self.folder.iterdir() if path.name != "__pycache__"))
