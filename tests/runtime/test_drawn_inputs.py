"""Inputs that a run draws itself are valid for what reads them: positions, offsets, lengths, chances."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.harness import capture_program, run_checked
from tmmu.runtime.compare.random_tensors import random_inputs, valid_inputs
from tmmu.runtime.execute.inputs import input_specs

CPU = torch.device("cpu")


class Runs(nn.Module):
    """A module of a function of its inputs ``x`` and ``i``."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return self.function(x, i)


def whole(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def bags(x: Tensor, i: Tensor, *, closed: bool) -> Tensor:
    ids = torch.zeros(20, dtype=torch.int32)
    return functional.embedding_bag(ids, x, i.int(), include_last_offset=closed)


def jagged(x: Tensor, i: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(x, i).to_padded_tensor(0.0)


READERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]] = {
    "offsets of bags": (lambda x, i: bags(x, i, closed=False), torch.zeros(9, 4), whole(5)),
    "closed offsets of bags": (lambda x, i: bags(x, i, closed=True), torch.zeros(9, 4), whole(5)),
    "offsets of jagged rows": (jagged, torch.zeros(10, 4), whole(4)),
    "lengths of segments": (lambda x, i: torch.segment_reduce(x, "sum", lengths=i), torch.zeros(10, 3), whole(3)),
    "offsets of segments": (lambda x, i: torch.segment_reduce(x, "sum", offsets=i), torch.zeros(10, 3), whole(4)),
    "rows of one": (lambda x, i: functional.embedding(i, x), torch.zeros(1, 4), whole(2, 3)),
    "columns of one": (lambda x, i: x.gather(-1, i), torch.zeros(3, 1), whole(3, 4)),
    "items of one": (lambda x, i: x[:, i] + x.index_select(1, i), torch.zeros(3, 1), whole(4)),
    "items behind a mask": (
        lambda x, i: x[(x[:, 0] >= 0).nonzero_static(size=2)[:, 0], i],
        torch.zeros(3, 1),
        whole(2),
    ),
    "places of a sum": (lambda x, i: torch.zeros(1, 4).index_add(0, i, x), torch.zeros(3, 4), whole(3)),
    "the only class": (functional.cross_entropy, torch.zeros(4, 1), whole(4)),
    "chances": (lambda x, i: torch.bernoulli(x) + torch.multinomial(x, 4) + i, torch.zeros(3, 4), whole(4)),
    "shares": (lambda x, i: functional.binary_cross_entropy(x, x) + i, torch.zeros(3, 4), whole(4)),
}


@pytest.mark.parametrize("name", READERS)
def test_drawn_inputs_are_valid_for_what_reads_them(name: str) -> None:
    function, x, i = READERS[name]
    program, _ = capture_program(lambda: Runs(function), {"x": x, "i": i})
    for seed in range(4):
        drawn = valid_inputs(program, input_specs(program.graph, CPU), seed, {})
        function(drawn["x"], drawn["i"])  # raises where they are not


def test_closed_offsets_end_at_the_last_row_and_open_ones_before() -> None:
    drawn = {}
    for closed in (False, True):
        reader, x, i = READERS["closed offsets of bags" if closed else "offsets of bags"]
        program, _ = capture_program(lambda reader=reader: Runs(reader), {"x": x, "i": i})
        drawn[closed] = valid_inputs(program, input_specs(program.graph, CPU), 0, {})["i"].tolist()
    assert drawn == {False: [0, 4, 8, 12, 16], True: [0, 5, 10, 15, 20]}


def test_inputs_of_which_nothing_is_asked_are_drawn_as_before() -> None:
    program, _ = capture_program(lambda: Runs(lambda x, i: x * i), {"x": torch.zeros(3, 4), "i": whole(4)})
    specs = input_specs(program.graph, CPU)
    drawn, free = valid_inputs(program, specs, 3, {"i": whole(4)}), random_inputs(specs, 3)
    assert all(torch.equal(drawn[name], free[name]) for name in ("x", "i"))


def test_rows_are_those_of_the_file_where_it_says_them(tmp_path: Path) -> None:
    """The file's longest row is a size of the program: rows of another length would not fit."""
    path = tmp_path / "rows.py"
    path.write_text(
        "import torch\n"
        "class Rows(torch.nn.Module):\n"
        "    def forward(self, x, i):\n"
        "        rows = torch.nested.nested_tensor_from_jagged(x, i, min_seqlen=1, max_seqlen=1)\n"
        "        return rows.to_padded_tensor(0.0)\n"
        "model = Rows()\n"
        "inputs = (torch.randn(10, 4), torch.tensor([0, 1, 2, 3]))\n"
    )
    report = run_checked(str(path))
    assert (report.checked, report.same) == (1, 1)
