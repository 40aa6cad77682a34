"""How long eager holds each storage that a step makes: from the call that makes it until its last reference goes.

The program's own references decide, which a trace on fake tensors has as a run has: locals of frames, attributes,
saved tensors of autograd, caches. State: the number of calls so far, and for each storage that died the calls that
there were then, with the function and line that ran (``_Release``). No tensor and no frame is kept.

Invariants. A storage is live during call ``p`` where ``birth <= p < death``: one that goes between two calls has gone
before the second. While the step runs nothing collects cycles (``trace.py``), so deaths are those of reference counts;
what a cycle holds dies at the end, where ``collect`` says so.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any, Final

from torch import fx

from tmmu.ir.ids import Bytes
from tmmu.ir.lifetimes import CYCLE, EagerRun, Lifetimes
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.storage_table import StorageTable
from tmmu.passes.capture.sources import UserFrame, display_name, user_frames, user_instruction
from tmmu.passes.operators.schema import signature

CALL: Final = "call"
"""Key of a node's metadata: its position among the calls that eager makes."""
FUNCTIONS: Final = "functions"
"""Key of a node's metadata: the user's frames around the call, innermost first."""


@dataclass(frozen=True, slots=True)
class _Release:
    """When a storage went: after so many calls, while the user's ``code`` ran ``line``; ``called``: as a call ended."""

    calls: int
    code: CodeType | None
    line: int
    called: bool
    stage: str


class LifetimeLog:
    """Follows the deaths of one recording; ``folder`` is the model's."""

    def __init__(self, folder: str) -> None:
        self.calls = 0
        self.stage = ""
        self._folder = folder
        self._releases: dict[int, _Release] = {}
        self._births: dict[int, int] = {}
        self._collected: frozenset[int] = frozenset()

    def number_call(self, node: fx.Node) -> None:
        """The next position is this node's."""
        node.meta[CALL] = self.calls
        node.meta[FUNCTIONS] = user_frames()
        self.calls += 1

    def note_constant(self, storage: int) -> None:
        """A constant that the program makes: lifting it is a call of eager's too."""
        self._births.setdefault(storage, self.calls)
        self.calls += 1

    def note_death(self, storage: int) -> None:
        """The storage is gone; the first time counts, since one that is freed may die later as an object."""
        if storage not in self._releases:
            code, line, called = user_instruction()
            self._releases[storage] = _Release(self.calls, code, line, called, self.stage)

    def note_collection(self, before: frozenset[int], after: frozenset[int]) -> None:
        """Of the storages that lived before garbage was collected, those afterwards are left."""
        self._collected = before - after

    def table(self, graph: fx.Graph, storages: StorageTable) -> EagerRun:
        """The spans of all storages that the step made, in order of birth and then of id."""
        nodes = [node for node in graph.nodes if CALL in node.meta]
        last_use = _last_uses(nodes)
        births = self._births | {
            storage: maker.meta[CALL]
            for storage in range(len(storages))
            if CALL in (maker := storages.maker_of(storage)).meta
        }
        order = sorted(births, key=lambda storage: (births[storage], storage))
        uses = [last_use.get(storage) for storage in order]
        all_storages = storages.storages()
        deaths = [self._death(storage) for storage in order]
        return EagerRun(
            python=".".join(platform.python_version_tuple()[:2]),
            calls=self.calls,
            persistent_bytes=Bytes(
                sum(s.bytes for i, s in enumerate(all_storages) if s.role is not None and i not in births)
            ),
            storages=Lifetimes(
                bytes=tuple(Bytes(all_storages[storage].bytes) for storage in order),
                birth=tuple(births[storage] for storage in order),
                death=tuple(deaths),
                last_use=tuple(
                    births[storage] if node is None else min(node.meta[CALL], death - 1)
                    for storage, node, death in zip(order, uses, deaths, strict=True)
                ),
                maker=tuple(_maker(storages.maker_of(storage)) for storage in order),
                module=tuple(storages.maker_of(storage).meta.get("module", "") for storage in order),
                source=tuple(storages.maker_of(storage).meta.get("source", "") for storage in order),
                holder=tuple(
                    self._holder(storage, storages.maker_of(storage).meta, node)
                    for storage, node in zip(order, uses, strict=True)
                ),
            ),
        )

    def _death(self, storage: int) -> int:
        release = self._releases.get(storage)
        return self.calls if release is None or storage in self._collected else release.calls

    def _holder(self, storage: int, maker: Mapping[str, Any], use: fx.Node | None) -> str:
        """Who held a storage after its last use, for people; empty where nobody did, or where it outlives the step."""
        if storage in self._collected:
            return CYCLE
        release = self._releases.get(storage)
        if release is None or use is None or release.calls <= use.meta[CALL] + 1:
            return ""
        if release.stage == "backward" and release.code is None:
            return "autograd, for the gradient"
        returned = _returned_function(release, use.meta[FUNCTIONS])
        if returned is not None:
            return f"{returned.code.co_name} of {self._line_in(returned, maker)} until it returns"
        if release.code is None:
            return ""
        file = display_name(release.code.co_filename, self._folder)
        return f"{release.code.co_name} of {file} until line {release.line}"

    def _line_in(self, function: UserFrame, maker: Mapping[str, Any]) -> str:
        """``file:line`` at which the function makes the storage, or calls what does; else where it last uses it."""
        frames: tuple[UserFrame, ...] = maker.get(FUNCTIONS, ())
        line = next((frame.line for frame in frames if frame.code is function.code), function.line)
        return f"{display_name(function.code.co_filename, self._folder)}:{line}"


def _returned_function(release: _Release, frames: tuple[UserFrame, ...]) -> UserFrame | None:
    """The function whose return let go: of those around the last use, the one that the line at the release called."""
    if release.code is None:
        return frames[-1] if frames else None
    if not release.called:
        return None
    return next((callee for callee, caller in pairwise(frames) if caller.code is release.code), None)


def _last_uses(nodes: list[fx.Node]) -> dict[int, fx.Node]:
    """By storage, the last call that reads, writes or returns a window of it."""
    last: dict[int, fx.Node] = {}
    for node in nodes:
        windows: list[Window | None] = [*node.meta["windows"], *node.meta["mutates"]]
        for argument in node.all_input_nodes:
            windows += argument.meta["windows"]
        last.update((window.storage, node) for window in windows if window is not None)
    return last


def _maker(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else signature(node.target).name  # a constant has a name alone
