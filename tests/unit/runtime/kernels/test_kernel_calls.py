"""Kernels called one by one, and by tables that a slot points at: here functions of Python stand for them."""

import ctypes
from typing import Any

import pytest
import torch

from tmmu.runtime.kernels import kernel_calls as subject
from tmmu.runtime.kernels.code import instruction, make_instruction
from tmmu.runtime.kernels.kernel_calls import (
    TABLES_BY_PLACES,
    Kernel,
    KernelSequence,
    is_kernel_call,
    kernel_code,
    merge_kernel_calls,
    run_operator,
    with_sequences,
)
from tmmu.runtime.kernels.kernel_launches import add_launcher


def function_of(count: int, seen: list[list[int]], fault: int = 0) -> Any:
    """A kernel that notes its pointers."""

    def run(pointers: int) -> int:
        seen.append(list((ctypes.c_void_p * count).from_address(pointers)))
        return fault

    return subject._FUNCTION(run)


def address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def run_table(sequence: KernelSequence) -> None:
    """What ``tmmu_kernel::sequence`` does."""
    assert sequence.slot.value is not None
    table = subject._Table.from_address(sequence.slot.value)
    for call in (subject._Call * table.count).from_address(table.calls):
        subject._FUNCTION(call.function)(call.pointers)


def test_pointers_are_those_of_the_kernel_s_arguments() -> None:
    seen: list[list[int]] = []
    function = function_of(5, seen)
    reads, changed = [torch.zeros(2), torch.zeros(3)], [torch.zeros(4)]
    results = [torch.zeros(5), torch.zeros(128, dtype=torch.uint8)]
    pointers = (("scratch", 1), ("read", 1), ("changed", 0), ("result", 0), ("read", 0))
    kernel = Kernel(address=address(function), pointers=pointers, scratch=((0, 4), (64, 4)), library=function)
    (instr,) = kernel_code(kernel, reads, changed, results)
    instr.operator(*instr.args)
    tensors = (results[1][64:], reads[1], changed[0], results[0], reads[0])
    assert seen == [[tensor.data_ptr() for tensor in tensors]]


@pytest.mark.parametrize(("fault", "kind"), [(1, IndexError), (2, RuntimeError)])
def test_what_a_kernel_returns_is_an_error(fault: int, kind: type[Exception]) -> None:
    function = function_of(1, [], fault)
    with pytest.raises(kind, match="fused kernel"):
        run_operator()(address(function), [torch.zeros(1)])


def test_neighbours_are_one_call_and_others_stay_between_them() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    kernels = [make_instruction(run_operator(), (number, [a, b]), {}) for number in (1, 2, 3)]
    other = instruction(torch.ops.aten.add_.Tensor, a, b)
    merged, sequences = merge_kernel_calls((kernels[0], kernels[1], other, kernels[2]))
    assert [str(instr.operator) for instr in merged] == [
        "tmmu_kernel.sequence.default", "aten.add_.Tensor", "tmmu_kernel.sequence.default",
    ]  # fmt: skip
    assert [[number for number, _ in sequence.calls] for sequence in sequences] == [[1, 2], [3]]
    assert [instr.args[0] for instr in (merged[0], merged[2])] == [ctypes.addressof(s.slot) for s in sequences]


def test_what_is_launched_is_an_operator_each_and_gets_its_tensors() -> None:
    seen: list[list[int]] = []
    number = add_launcher(lambda tensors: seen.append([tensor.data_ptr() for tensor in tensors]))
    kernel = Kernel(address=number, pointers=(("result", 0), ("read", 0)), scratch=(), library=None, is_launched=True)
    read, result = torch.zeros(2), torch.zeros(2)
    (instr,) = kernel_code(kernel, [read], [], [result])
    assert is_kernel_call(instr)
    instr.operator(*instr.args)
    assert seen == [[result.data_ptr(), read.data_ptr()]]
    of_c = make_instruction(run_operator(), (1, [read]), {})
    merged, sequences = merge_kernel_calls((instr, instr, of_c))
    assert [str(each.operator) for each in merged] == [
        "tmmu_kernel.launch.default", "tmmu_kernel.launch.default", "tmmu_kernel.sequence.default",
    ]  # fmt: skip
    assert len(sequences) == 1


def test_a_sequence_moves_to_the_tensors_of_a_run_and_keeps_the_rest() -> None:
    seen: list[list[int]] = []
    function = function_of(2, seen)
    template, own = torch.zeros(4), torch.zeros(4)
    instr = make_instruction(run_operator(), (address(function), [template, own]), {})
    _, (sequence,) = merge_kernel_calls((instr,), (torch.zeros(1), template))
    states = [torch.zeros(4) for _ in range(3)]
    run = with_sequences(lambda *_: run_table(sequence), (sequence,))
    for place in (0, 1, 0, 2):
        run(torch.zeros(1), states[place])
    assert seen == [[states[place].data_ptr(), own.data_ptr()] for place in (0, 1, 0, 2)]
    assert len(sequence._tables) == 3


def test_tables_of_a_slot_are_bounded() -> None:
    seen: list[list[int]] = []
    function, template = function_of(1, seen), torch.zeros(1)
    instr = make_instruction(run_operator(), (address(function), [template]), {})
    _, (sequence,) = merge_kernel_calls((instr,), (template,))
    states = [torch.zeros(1) for _ in range(TABLES_BY_PLACES + 3)]
    for state in states:
        sequence.move((state,))
        run_table(sequence)
    assert len(sequence._tables) == TABLES_BY_PLACES
    assert seen == [[state.data_ptr()] for state in states]


def test_code_without_arguments_is_called_as_it_is() -> None:
    def function() -> None: ...

    instr = make_instruction(run_operator(), (1, [torch.zeros(1)]), {})
    _, sequences = merge_kernel_calls((instr,))
    assert with_sequences(function, sequences) is function
