"""Every error code has a command line that ends with it."""

import socket
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.unit.cli.graphs import Shell, circular, leaving_its_buffer, small
from tests.unit.judge.rewrite.programs import deep_step
from tmmu.codec.load import load_plan
from tmmu.errors import InternalError, TmmuError
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan

Arguments: TypeAlias = tuple[object, ...]

OF_THE_RUNTIME: Final = {"SEGMENT_FULL", "SESSION_UNKNOWN", "DEVICE_MEMORY"}
"""Codes of the runtime alone, which no command reaches."""

OF_REQUESTS: Final = {
    "INVALID_REQUEST", "PROMPT_TOO_LONG", "REQUEST_TOO_LARGE", "REQUEST_TIMEOUT", "KEY_REFUSED", "MODEL_UNKNOWN",
    "SERVER_BUSY",
}  # fmt: skip
"""Codes that clients of ``tmmu serve`` get over HTTP; tested in ``tests/server``."""

OF_REMOTE_DEVICES: Final = {"DEVICE_TAKEN", "QUOTA_EXCEEDED"}
"""Codes of ``device="remote"``; tested in ``tests/unit/client/device`` and ``tests/unit/server/graphs``."""

OF_THE_WIRE: Final = {"DEADLINE_EXCEEDED", "REFERENCE_STALE", "SERVER_GONE", "WIRE_BROKEN"}
"""Codes of ``tmmu.connect``; tested in ``tests/server`` and ``tests/unit/client``."""

OF_A_VERDICT: Final = {"GOLDEN_MISMATCH", "PEAK_OVER_LIMIT", "HOST_UNFIT"}
"""Codes of commands that print a report first; tested in ``tests/golden``, ``test_diff`` and ``test_doctor``."""

OF_REWRITES: Final = {"REWRITE_UNSOUND"}
"""The code of the judge of rewrites; tested in ``tests/unit/judge/rewrite`` and ``test_fitted``."""

BY_NO_INPUT: Final = {InternalError.code}
"""The code of our own bugs, which no input reaches; tested in ``test_error_boundary``."""


def invalid_ir_shapes(shell: Shell) -> Arguments:
    return "plan", shell.graph(leaving_its_buffer())


def liveness_cycle(shell: Shell) -> Arguments:
    return "plan", shell.graph(circular())


def address_collision(shell: Shell) -> Arguments:
    """One bit is left for an address, and seed 0 gives both slots of the activations the same."""
    graph = small()
    empty = replace(graph, buffers=replace(graph.buffers, bytes=(4096, 1 << 20, 1 << 20, 4096, 0, 0, 0, 0)))
    nothing = tuple(
        (0, *shape[1:]) if buffer > 3 else shape
        for buffer, shape in zip(graph.values.buffer, graph.values.shape, strict=True)
    )
    empty = replace(empty, values=replace(graph.values, shape=nothing))
    return (
        "plan",
        shell.graph(empty),
        "--preset",
        "train_full",
        "--arena",
        f"activations=alignment:{1 << 63},layout:packed",
    )


def allocation_overflow(shell: Shell) -> Arguments:
    return "plan", shell.graph(small()), "--arena", f"parameters=alignment:{1 << 63}"


def arena_too_small(shell: Shell) -> Arguments:
    return "plan", shell.graph(small()), "--arena", "activations=capacity:1KiB"


def alignment_violation(shell: Shell) -> Arguments:
    return "plan", shell.graph(small()), "--arena", "activations=alignment:96"


def invalid_token(shell: Shell) -> Arguments:
    return "plan", shell.graph(small()), "--token", "c0ffee"


def invalid_config(shell: Shell) -> Arguments:
    return "plan", shell.graph(small()), "--arena", "heap=capacity:1"


def device_missing(shell: Shell) -> Arguments:
    return "bandwidth", "--device", "cuda:99"


def port_taken(shell: Shell) -> Arguments:
    listener = socket.create_server(("127.0.0.1", 0))
    weakref.finalize(shell, listener.close)
    Path("config.json").write_text("{}")
    return "serve", "--model", "a=.", "--listen", f"127.0.0.1:{listener.getsockname()[1]}"


def capture_failed(shell: Shell) -> Arguments:
    Path("broken.py").write_text("model = 1 +\n")
    return "plan", "broken.py"


GATED = """
import torch
class model(torch.nn.Module):
    def forward(self, gate, x):
        chosen = (x @ gate).topk(1)[1].squeeze(1)
        return torch.cat([x[chosen == expert] for expert in range(4)])
def inputs():
    return torch.empty(8, 4), torch.empty(16, 8)
"""


def capacity_undeclared(shell: Shell) -> Arguments:
    Path("gated.py").write_text(GATED)
    return "plan", "gated.py"


def routing_assumed(shell: Shell) -> Arguments:
    Path("gated.py").write_text(GATED)
    return "run", "gated.py", "--capacity-factor", "1"


def unsupported_op(shell: Shell) -> Arguments:
    Path("nested.py").write_text(
        "import torch\n"
        "def model():\n"
        "    return lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))\n"
        "def inputs():\n"
        "    return (torch.zeros(4),)\n"
    )
    return "plan", "nested.py", "--device", "cpu"


def budget_too_small(shell: Shell) -> Arguments:
    return "fit", shell.graph(deep_step("adamw:foreach")), "--step", "1KiB"


def plan_corrupt(shell: Shell) -> Arguments:
    plan = shell.plan()
    plan.write_bytes(plan.read_bytes()[:-1])
    return "verify", plan


def plan_mismatch(shell: Shell) -> Arguments:
    plan = shell.plan()
    Path("other.ir.cbor").write_bytes(encode_graph(replace(small(), target="cuda")))
    return "verify", plan, "--ir", "other.ir.cbor"


def plan_unsound(shell: Shell) -> Arguments:
    plan = shell.plan()
    broken = load_plan(plan)
    plan.write_bytes(encode_plan(replace(broken, buffers=replace(broken.buffers, offset=(0,) * 7))))
    return "verify", plan


CASES: Final[tuple[Callable[[Shell], Arguments], ...]] = (
    invalid_ir_shapes,
    liveness_cycle,
    address_collision,
    allocation_overflow,
    arena_too_small,
    alignment_violation,
    invalid_token,
    invalid_config,
    device_missing,
    port_taken,
    capture_failed,
    capacity_undeclared,
    routing_assumed,
    unsupported_op,
    budget_too_small,
    plan_corrupt,
    plan_mismatch,
    plan_unsound,
)


def errors(base: type[TmmuError] = TmmuError) -> Iterator[type[TmmuError]]:
    """Every error class of ``tmmu.errors`` with a code of its own."""
    for error in base.__subclasses__():
        if error.__module__ == "tmmu.errors":
            if "code" in vars(error):
                yield error
            yield from errors(error)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_code_is_reached(shell: Shell, case: Callable[[Shell], Arguments]) -> None:
    arguments = case(shell)
    before = shell.files()
    (expected,) = (error for error in errors() if error.code == case.__name__.upper())
    done = shell.tmmu(*arguments)
    assert done.err.startswith(f"tmmu: {expected.code}: "), done.err
    assert done.err.count("\n") == 1
    assert (done.code, done.out) == (expected.exit_code, "")
    assert shell.files() == before
    record = shell.tmmu(*arguments, "--json").record
    assert list(record) == ["code", "exit", "what", "fix", "fields"]
    assert (record["code"], record["exit"]) == (expected.code, expected.exit_code)
    assert record["fix"], "every refusal says what to do"


def test_every_code_has_a_case() -> None:
    reached = {case.__name__.upper() for case in CASES}
    assert (
        {error.code for error in errors()}
        - OF_THE_RUNTIME
        - OF_REQUESTS
        - OF_REMOTE_DEVICES
        - OF_THE_WIRE
        - OF_A_VERDICT
        - OF_REWRITES
        - BY_NO_INPUT
        == reached
    )
