"""Calls of compiled kernels on planned tensors: one by one from Python, or many at once through a table of pointers.

A *kernel* is a function of C that takes an array of pointers and returns 0, 1 for an index out of range, 2 for any
other fault, or what a GPU launches (``kernel_launches``). ``tmmu_kernel::run(int, Tensor[])`` calls one on tensors;
``tmmu_kernel::sequence(int)`` calls those of a table one after another, and costs what one operator does. The table is
reached through a *slot*, so that code moves to other tensors (another session's state) by pointing its slot at another
table. Invariants: a table, its arrays and the tensors in it live as long as the code that names its slot; a sequence
holds neighbours alone, so order is the program's.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Code, Instruction, leaves, make_instruction
from tmmu.runtime.kernels.kernel_launches import NAMESPACE, launch_operator

TABLES_BY_PLACES: Final = 64
"""Tables of one slot that are kept, the last used."""
READ_POINTER, CHANGED_POINTER, RESULT_POINTER, SCRATCH_POINTER = "read", "changed", "result", "scratch"
_LIBRARY: Final = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("run(int kernel, Tensor(a!)[] tensors) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.define("sequence(int slot) -> ()")  # type: ignore[no-untyped-call]
_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernel:
    """A compiled kernel: the address of its function, and what each pointer is: (kind, which of that kind).

    ``scratch``: (offset, bytes) of each piece in the one tensor of scratch. ``library`` keeps the code loaded. Where it
    ``is_launched`` its address is the number of a launcher.
    """

    address: int
    pointers: tuple[tuple[str, int], ...]
    scratch: tuple[tuple[int, int], ...]
    library: Any
    is_launched: bool = False


def kernel_code(
    kernel: Kernel, reads: Sequence[torch.Tensor], changed: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> Code:
    """The call of a kernel; the last of ``results`` is its scratch, where it has any."""
    pieces = [results[-1][offset:] for offset, _ in kernel.scratch]
    tensors = {READ_POINTER: reads, CHANGED_POINTER: changed, RESULT_POINTER: results, SCRATCH_POINTER: pieces}
    arguments = [tensors[kind][place] for kind, place in kernel.pointers]
    operator = launch_operator() if kernel.is_launched else run_operator()
    return (make_instruction(operator, (kernel.address, arguments), {}),)


def run_operator() -> Any:
    """``tmmu_kernel::run``."""
    return torch.ops.tmmu_kernel.run.default


def sequence_operator() -> Any:
    """``tmmu_kernel::sequence``; it has a kernel once ``load_sequence_operator`` was called."""
    return torch.ops.tmmu_kernel.sequence.default


def _run(kernel: int, tensors: list[torch.Tensor]) -> None:
    pointers = _pointers(tensors)
    fault = _FUNCTION(kernel)(ctypes.addressof(pointers))
    if fault == 1:
        raise IndexError("index out of range in a fused kernel")
    if fault:
        raise RuntimeError("a fused kernel fails: an integer is divided by zero")


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


def _pointers(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


class _Call(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("pointers", ctypes.c_void_p))


class _Table(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int64), ("calls", ctypes.c_void_p))


@dataclass(slots=True, eq=False)
class KernelSequence:
    """Neighbouring calls of kernels, on tensors of which some are given anew in each run.

    ``arguments``: by the ``id`` of a tensor that is given, which of the arguments it is.
    """

    calls: tuple[tuple[int, tuple[torch.Tensor, ...]], ...]
    arguments: Mapping[int, int]
    slot: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    used: tuple[int, ...] = field(init=False)
    """The arguments that its kernels take."""
    _tables: dict[tuple[int, ...], tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = {self.arguments[id(t)] for _, tensors in self.calls for t in tensors if id(t) in self.arguments}
        self.used = tuple(sorted(used))
        if not self.used:
            self.move(())

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        """Has the next run take these in place of the arguments."""
        places = tuple(tensors[argument].data_ptr() for argument in self.used)
        table = self._tables.pop(places, None)
        if table is None:
            table = self._table(dict(zip(self.used, places, strict=True)))
        self._tables[places] = table  # the last in the dict is the last used
        if len(self._tables) > TABLES_BY_PLACES:
            del self._tables[next(iter(self._tables))]
        self.slot.value = ctypes.addressof(table[0])

    def _table(self, places: Mapping[int, int]) -> tuple[Any, ...]:
        """A table and what it points to."""
        arrays = []
        for _, tensors in self.calls:
            pointers = [places.get(self.arguments.get(id(tensor), -1)) or tensor.data_ptr() for tensor in tensors]
            arrays.append((ctypes.c_void_p * len(pointers))(*pointers))
        rows = zip(self.calls, arrays, strict=True)
        calls = (_Call * len(arrays))(*(_Call(kernel, ctypes.addressof(array)) for (kernel, _), array in rows))
        return _Table(len(arrays), ctypes.addressof(calls)), calls, arrays


def is_kernel_call(instr: Instruction) -> bool:
    """Whether an instruction calls a compiled kernel."""
    return getattr(instr.operator, "namespace", "") == NAMESPACE


def _is_call_of_c(instr: Instruction) -> bool:
    """Whether it calls a function of C, which a table can have; what is launched is an operator each."""
    return is_kernel_call(instr) and instr.operator is not launch_operator()


def merge_kernel_calls(code: Code, arguments: Sequence[torch.Tensor] = ()) -> tuple[Code, tuple[KernelSequence, ...]]:
    """The code with each stretch of neighbouring kernel calls as one call, and the sequences that these name."""
    merged: list[Instruction] = []
    sequences: list[KernelSequence] = []
    stretch: list[Instruction] = []
    places = {id(tensor): place for place, tensor in enumerate(arguments)}

    def end_stretch() -> None:
        if stretch:
            calls = tuple((instr.args[0], tuple(leaves(instr.args[1]))) for instr in stretch)
            sequences.append(KernelSequence(calls, places))
            slot = ctypes.addressof(sequences[-1].slot)
            merged.append(make_instruction(sequence_operator(), (slot,), {}))
            stretch.clear()

    for instr in code:
        if _is_call_of_c(instr) and instr.switches is None:
            stretch.append(instr)
        else:
            end_stretch()
            merged.append(instr)
    end_stretch()
    return tuple(merged), tuple(sequences)


def with_sequences(function: Callable[..., object], sequences: Sequence[KernelSequence]) -> Callable[..., object]:
    """The function, which has each sequence take the arguments of its call first; it keeps them alive."""
    moving = tuple(sequence for sequence in sequences if sequence.used)

    def run(*tensors: torch.Tensor) -> None:
        for sequence in moving:
            sequence.move(tensors)
        function(*tensors)

    owner: Callable[..., object] = run if moving else function
    owner.sequences = sequences  # type: ignore[attr-defined]
    return owner
