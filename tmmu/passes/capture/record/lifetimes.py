"""How long eager holds each storage that a step makes: from the call that makes it until its last reference goes.

The program's own references decide, which a trace on fake tensors has as a run has: locals of frames, attributes,
saved tensors of autograd, caches. State: the number of calls so far, and for each storage that died the calls that
there were then, with the function and line that ran (``_Release``). No tensor and no frame is kept.

Invariants. A storage is live during call ``p`` where ``birth <= p < death``: one that goes between two calls has gone
before the second. While the step runs nothing collects cycles (``recording.py``), so deaths are those of reference
counts; what a cycle holds dies at the end, as ``note_collection`` is told.
"""

import platform
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import fx

from tmmu.ir.ids import Bytes
from tmmu.ir.lifetimes import CYCLE, EARLIER, EagerRun, Lifetimes
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.places import is_host_storage
from tmmu.passes.capture.record.storage_table import CALL, StorageTable
from tmmu.passes.capture.sources import UserFrame, display_name, user_frames, user_instruction
from tmmu.passes.operators.schema import signature
from tmmu.torch_private import cpp_address, current_autograd_node

STREAM: Final = "stream"
"""Key of a node's metadata: the stream that its results are made on, by the order in which streams are met."""
FUNCTIONS: Final = "functions"
"""Key of a node's metadata: the user's frames around the call, innermost first."""


@dataclass(frozen=True, slots=True)
class _Release:
    """When a storage went: after so many calls, with the user's frame that ran; ``called``: as a call of it ended."""

    calls: int
    frame: UserFrame | None
    called: bool
    stage: str


@dataclass(slots=True)
class _Earlier:
    """A storage from before the step; ``death`` as of the others, ``None`` where it outlives the step."""

    nbytes: int
    reference: "weakref.ref[torch.UntypedStorage]"
    on_host: bool
    death: int | None = None


class LifetimeLog:
    """Follows the deaths of one recording; ``folder`` is the model's. Without ``follows`` it only counts."""

    def __init__(self, folder: str, *, follows: bool) -> None:
        self._follows = follows
        self.calls = 0
        self.stage = ""
        self._folder = folder
        self._releases: dict[int, _Release] = {}
        self._births: dict[int, int] = {}
        self._collected: frozenset[int] = frozenset()
        self._earlier: list[_Earlier] = []
        self._earlier_ids: dict[int, int] = {}
        self._streams: list[torch.cpu.Stream] = [torch.cpu.current_stream()]

    def watch_earlier(self, storage: torch.UntypedStorage) -> None:
        """A storage that was there before the step, and may go in it."""
        address = cpp_address(storage)
        if address not in self._earlier_ids:
            row = len(self._earlier)
            self._earlier_ids[address] = row
            reference = weakref.ref(storage, partial(self._lose_earlier, address))
            self._earlier.append(_Earlier(storage.nbytes(), reference, is_host_storage(storage)))

    def _lose_earlier(self, address: int, _: Any) -> None:
        self._earlier[self._earlier_ids.pop(address)].death = self.calls

    def is_earlier(self, storage: torch.UntypedStorage) -> bool:
        """Whether it was there before the step."""
        return cpp_address(storage) in self._earlier_ids

    @property
    def earlier_bytes(self) -> int:
        """Of what was there before the step, what is there still."""
        return sum(entry.nbytes for entry in self._earlier if entry.death is None)

    def number_call(self, node: fx.Node) -> None:
        """The next position is this node's."""
        node.meta[CALL] = self.calls
        node.meta[STREAM] = self._number_of(torch.cpu.current_stream())
        if self._follows:
            node.meta[FUNCTIONS] = user_frames()
        self.calls += 1

    def _number_of(self, stream: torch.cpu.Stream) -> int:
        """Of a stream, which has no device here, and whose object is held so that no other has its address."""
        for number, known in enumerate(self._streams):
            if known is stream:
                return number
        self._streams.append(stream)
        return len(self._streams) - 1

    def note_constant(self, storage: int) -> None:
        """A constant that the program makes: lifting it is a call of eager's too."""
        self._births.setdefault(storage, self.calls)
        self.calls += 1

    def note_placing(self) -> None:
        """A call that is no node of the graph: it only moves a tensor on its storage."""
        self.calls += 1

    def note_death(self, storage: int) -> None:
        """The storage is gone; the first time counts, since one that is freed may die later as an object."""
        if self._follows and storage not in self._releases:
            frame, called = user_instruction()
            stage = "backward" if current_autograd_node() is not None else self.stage
            self._releases[storage] = _Release(self.calls, frame, called, stage)

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
        uses = {storage: (births[storage], last_use.get(storage)) for storage in order}
        return EagerRun(
            python=".".join(platform.python_version_tuple()[:2]),
            calls=self.calls,
            persistent_bytes=Bytes(self._persistent_bytes(storages, births)),
            storages=self._rows(uses, storages, on_host=False),
            host=self._rows(uses, storages, on_host=True),
        )

    def _rows(
        self, uses: Mapping[int, tuple[int, fx.Node | None]], storages: StorageTable, *, on_host: bool
    ) -> Lifetimes:
        """The rows of one place; ``uses``: birth and last use by storage, in order."""
        ids = [storage for storage in uses if (storage in storages.on_host) == on_host]
        gone = [entry for entry in self._earlier if entry.death and entry.on_host == on_host]
        makers, deaths = [storages.maker_of(storage) for storage in ids], [self._death(storage) for storage in ids]
        blank, all_storages = ("",) * len(gone), storages.storages()
        last_uses = (
            birth if node is None else min(node.meta[CALL], death - 1)
            for (birth, node), death in zip(map(uses.__getitem__, ids), deaths, strict=True)
        )
        streams = (*(0,) * len(gone), *(maker.meta.get(STREAM, 0) for maker in makers))
        holders = (self._holder(storage, maker, uses[storage][1]) for storage, maker in zip(ids, makers, strict=True))
        return Lifetimes(
            bytes=(*(Bytes(e.nbytes) for e in gone), *(Bytes(all_storages[storage].bytes) for storage in ids)),
            birth=(*(0,) * len(gone), *(uses[storage][0] for storage in ids)),
            death=(*(entry.death or 0 for entry in gone), *deaths),  # what goes before the first call is in none
            last_use=(*((entry.death or 1) - 1 for entry in gone), *last_uses),
            maker=(*(EARLIER,) * len(gone), *map(_maker, makers)),
            module=(*blank, *(maker.meta.get("module", "") for maker in makers)),
            source=(*blank, *(maker.meta.get("source", "") for maker in makers)),
            holder=(*blank, *holders),
            stream=streams if any(streams) else (),
        )

    def _persistent_bytes(self, storages: StorageTable, births: Mapping[int, int]) -> int:
        """What of the device was there before the step and is after it; of a user's step, all that was looked for."""
        if self._earlier:
            return sum(entry.nbytes for entry in self._earlier if entry.death is None and not entry.on_host)
        rows = enumerate(storages.storages())
        return sum(s.bytes for i, s in rows if s.role is not None and i not in births and i not in storages.on_host)

    def _death(self, storage: int) -> int:
        release = self._releases.get(storage)
        return self.calls if release is None or storage in self._collected else release.calls

    def _holder(self, storage: int, maker: fx.Node, use: fx.Node | None) -> str:
        """Who held a storage after its last use, for people; empty where nobody did, or where it outlives the step."""
        if storage in self._collected:
            return CYCLE
        release = self._releases.get(storage)
        if release is None or use is None or release.calls <= use.meta[CALL] + 1:
            return ""
        if release.stage == "backward" and release.frame is None:
            return "autograd, for the gradient"
        returned = _returned_function(release, use.meta[FUNCTIONS])
        if returned is not None:
            return f"{returned.name} of {self._line_in(returned, maker.meta)} until it returns"
        if release.frame is None:
            return ""
        frame = release.frame
        return f"{frame.name} of {display_name(frame.file, self._folder)} until line {frame.line}"

    def _line_in(self, function: UserFrame, maker: Mapping[str, Any]) -> str:
        """``file:line`` at which the function makes the storage, or calls what does; else where it last uses it."""
        frames: tuple[UserFrame, ...] = maker.get(FUNCTIONS, ())
        line = next((frame.line for frame in frames if frame.is_of(function)), function.line)
        return f"{display_name(function.file, self._folder)}:{line}"


def _returned_function(release: _Release, frames: tuple[UserFrame, ...]) -> UserFrame | None:
    """The function whose return let go: of those around the last use, the one that the line at the release called."""
    if release.frame is None:
        return frames[-1] if frames else None
    if not release.called:
        return None
    return next((callee for callee, caller in pairwise(frames) if caller.is_of(release.frame)), None)


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
