"""``tmmu plan hf:PATH --tp --fsdp``: what is refused, and that each rank has a plan of its own in the cache."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.passes.capture.targets.test_sharded import LLAMA


@pytest.fixture
def llama(shell: Shell) -> Path:
    folder = shell.folder / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pp", 2, "--mode", "forward"), "INVALID_CONFIG: --mode forward: not with --pp"),
        (("--pp", 2, "--decode"), "INVALID_CONFIG: --decode: not with --pp"),
        (("--pp", 2, "--mode", "backward", "--autocast", "bf16"), "INVALID_CONFIG: --autocast: not with --pp"),
        (("--pp", 2, "--mode", "backward", "--loss", "sum"), "INVALID_CONFIG: --loss sum: not with --pp"),
        (("--pp", 2, "--schedule", "2f2b"), "INVALID_CONFIG: --schedule '2f2b': no such schedule"),
        (("--pp", 2, "--microbatches", 0), "INVALID_CONFIG: --microbatches: 0 is not in"),
        (("--tp", 2, "--schedule", "gpipe"), "INVALID_CONFIG: --schedule: only with --pp of 2 or more"),
        (("--pp", 1, "--microbatches", 2), "INVALID_CONFIG: --microbatches: only with --pp of 2 or more"),
        (("--ep", 2), "INVALID_CONFIG: --ep 2: experts lie on ranks of --tp 1 and --fsdp 1, which it does not part"),
        (("--tp", 2, "--fsdp", 2, "--ep", 3), "INVALID_CONFIG: --ep 3: experts lie on ranks of --tp 2"),
        (("--tp", 2, "--ep", 2), "INVALID_CONFIG: --tp 2 --fsdp 1 --ep 2: `ep_size=2` was requested, but"),
        (("--capacity-factor", "0.99"), "INVALID_CONFIG: --capacity-factor: 0.99 is not in 1.."),
        (("--capacity-factor", "many"), "INVALID_CONFIG: --capacity-factor: 'many' is no factor"),
        (("--capacity-factor", "1.23456789"), "INVALID_CONFIG: --capacity-factor: 1.23456789 has more than 6 digits"),
        (("--pp", 0), "INVALID_CONFIG: --pp: 0 is not in"),
        (("--ep", -1), "INVALID_CONFIG: --ep: -1 is not in"),
        (("--tp", 0), "INVALID_CONFIG: --tp: 0 is not in"),
        (("--world", 2), "INVALID_CONFIG: --world: only for a model.py"),
        (("--rank", 2), "INVALID_CONFIG: --rank: only with --world, --tp, --fsdp or --pp"),
        (("--tp", 2, "--rank", 2), "INVALID_CONFIG: rank 2 is none of 2"),
    ],
)
def test_what_no_trace_follows_is_refused_by_its_name(
    shell: Shell, llama: Path, options: tuple[object, ...], said: str
) -> None:
    ran = shell.tmmu("plan", f"hf:{llama}", *options)
    assert ran.code == 2
    assert ran.err.startswith(f"tmmu: {said}")


def test_ranks_of_a_configuration_have_keys_of_their_own(shell: Shell, llama: Path) -> None:
    """A configuration is looked up by its files, before any trace."""
    options = ("--mode", "inference", "--device", "cpu", "--seq", 16, "--json")
    records = [
        shell.tmmu("plan", f"hf:{llama}", *options, *ranks).record
        for ranks in (("--tp", 2, "--rank", "first"), ("--tp", 2, "--rank", "last"), ("--tp", 2, "--rank", "first"))
    ]
    first, last, again = records
    assert [record["model"][-11:] for record in records] == ["rank 0 of 2", "rank 1 of 2", "rank 0 of 2"]
    assert last["cache"]["miss"]
    assert (again["cache"]["miss"], again["digest"]) == ("", first["digest"])


@pytest.mark.slow
def test_stages_are_kinds_of_ranks_and_have_keys_of_their_own(shell: Shell, llama: Path) -> None:
    options = ("--mode", "inference", "--device", "cpu", "--seq", 16, "--json", "--pp", 2)
    kinds = shell.tmmu("plan", f"hf:{llama}", *options).record["ranks"]["kinds"]
    assert [kind["ranks"] for kind in kinds] == [[0], [1]]
    last = ("--rank", "last")
    three = shell.tmmu("plan", f"hf:{llama}", *options, *last, "--microbatches", 3).record
    two = shell.tmmu("plan", f"hf:{llama}", *options, *last).record
    again = shell.tmmu("plan", f"hf:{llama}", *options, *last, "--microbatches", 3).record
    assert two["cache"]["miss"]
    assert (again["cache"]["miss"], again["digest"]) == ("", three["digest"]) != ("", two["digest"])
