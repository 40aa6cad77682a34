"""Swap policies of sessions in virtual time: ``python -m benchmarks.sessions [WORKLOAD.toml] [--only PART]``.

The workload as it is, beside perfect knowledge and a device on which all fit; the number of agents swept; then what the
workload leaves open, one thing changed at a time. Times in ms, of virtual time: nothing here depends on the machine.
``--only`` one of ``policies``, ``agents``, ``variants`` and ``host``.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tmmu.engine.policies.table import POLICIES, policy_named
from tmmu.engine.simulation.results import SimulationResult, percentile
from tmmu.engine.simulation.simulate import bounds, simulate
from tmmu.engine.simulation.workload import SessionWorkload
from tmmu.engine.simulation.workload_file import load_workload, with_agents

DEFAULT = Path("examples/workloads/fifty-agents.toml")
AGENTS = (10, 20, 30, 40, 50, 60, 70, 80, 100, 150, 200, 300, 400)
HOST_GB = (20, 40, 60, 80, 100)
S = 10**9
COLUMNS = ("p50", "p90", "p99", "first p99", "tokens/s", "success", "GB in", "GB out", "link busy")


def row(name: str, result: SimulationResult) -> str:
    ms = [percentile(result.resumes_ns, percent) for percent in (50, 90, 99)]
    ms.append(percentile(result.first_tokens_ns, 99))
    cells = (
        *("-" if time is None else f"{time / 1e6:.0f}" for time in ms),
        f"{result.tokens_per_second / 1000:.0f}",
        f"{result.success_ppm / 10_000:.0f} %",
        f"{result.bytes_in / 1e9:.0f}",
        f"{result.bytes_out / 1e9:.0f}",
        f"{100 * result.link_ns / max(result.end_ns, 1):.0f} %",
    )
    return f"| {name} | " + " | ".join(cells) + " |"


def heading(*names: str) -> str:
    cells = (*names, *COLUMNS)
    return "\n".join(("| " + " | ".join(cells) + " |", "| " + " | ".join("---" for _ in cells) + " |"))


def all_results(workload: SessionWorkload) -> list[SimulationResult]:
    return [*(simulate(workload, policy) for policy in POLICIES), *bounds(workload)]


def policies(workload: SessionWorkload) -> Iterator[str]:
    yield heading("policy")
    for result in all_results(workload):
        yield row(f"`{result.policy}`", result)


def agents(workload: SessionWorkload) -> Iterator[str]:
    """99th percentile of resumes, tokens a second and success, for each policy."""
    names = [*(policy.name for policy in POLICIES), "perfect", "all fit"]
    yield "| agents | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "| " + " | ".join("---" for _ in ("agents", *names)) + " |"
    for count in AGENTS:
        cells = []
        for result in all_results(with_agents(workload, count)):
            p99 = percentile(result.resumes_ns, 99)
            late = "-" if p99 is None else f"{p99 / 1e6:.0f}"
            cells.append(f"{late} / {result.tokens_per_second / 1000:.0f} / {result.success_ppm / 10_000:.0f} %")
        yield f"| {count} | " + " | ".join(cells) + " |"


def variants(workload: SessionWorkload) -> Iterator[str]:
    first = workload.groups[0]
    changes = {
        "waits of 5 to 15 s": replace(first, wait_spread_ns=5 * S),
        "waits of 0 to 20 s": replace(first, wait_spread_ns=10 * S),
        "5 rounds": replace(first, rounds=5),
        "20 rounds": replace(first, rounds=20),
        "256 tokens read at each resume": replace(first, resume_tokens=256),
        "the prompt read again at each resume": replace(first, resume_tokens=first.prefill_tokens),
    }
    yield heading("changed", "policy")
    for name, group in changes.items():
        for result in all_results(replace(workload, groups=(group,))):
            yield row(f"{name} | `{result.policy}`", result)


def host(workload: SessionWorkload) -> Iterator[str]:
    yield heading("host tier", "policy")
    for gigabytes in HOST_GB:
        limited = replace(workload, limits=replace(workload.limits, host=gigabytes * 10**9))
        for name in ("lru", "idle", "hint", "predicted"):
            yield row(f"{gigabytes} GB | `{name}`", simulate(limited, policy_named(name)))


PARTS = {"policies": policies, "agents": agents, "variants": variants, "host": host}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--only", choices=PARTS)
    chosen = parser.parse_args()
    workload = load_workload(chosen.workload)
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            print(f"{name}\n", flush=True)
            for line in part(workload):
                print(line, flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
