"""Ring policies side by side, in predicted time: ``python -m benchmarks.ring_policies [--only TEXT] [--random N]``.

Models of the corpus, captured without weights, in budgets that are parts of their weights. Per policy: the time of a
pass, the share of it in which the link copies, and the effective bandwidth over that of ``skip_end``. With ``--random
N`` as many random problems: how often each policy fits, and how it compares with ``cyclic``.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import mean

from benchmarks.architectures import ARCHITECTURES
from benchmarks.corpus import plan
from tests.property.test_ring import random_layers
from tmmu.errors import ArenaTooSmall
from tmmu.ir.ring import POLICIES
from tmmu.judge.check import judge
from tmmu.planner.ring.figures import Figures, figures_of
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.prepare import RingRequest, prepare_ring, problem_of
from tmmu.planner.ring.profile import Profile
from tmmu.planner.token import token_from_seed

MODELS = ("Llama 3.1 70B", "Mixtral 8x7B", "DeepSeek V2 Lite", "Whisper small", "Swin tiny")
GB = 10**9
HEADING = "policy   depth  s per pass  link busy  GB/s  times skip_end  limit     plan s"


def budgets(name: str, weights: int) -> tuple[int, ...]:
    """48 GB for the largest model, as in the evaluation plan; a quarter and a half of the weights for the others."""
    return (48 * GB,) if name.endswith("70B") else (weights // 4, weights // 2)


def models(only: str) -> Iterator[tuple[str, int, list[str]]]:
    for architecture in ARCHITECTURES:
        if architecture.name in MODELS and only in architecture.name:
            row = plan(architecture, "inference", "cuda")
            if row.result is None:
                sys.exit(f"{architecture.name}: {row.reason}")
            graph, plain = row.result.graph, row.result.plan
            problem = problem_of(graph, plain, Profile())
            for budget in budgets(architecture.name, sum(problem.bytes)):
                figures_by_policy: dict[str, tuple[int, Figures, float]] = {}
                for policy in POLICIES:
                    for depth in (0, 2) if policy == "cyclic" else (0,):
                        start = time.perf_counter()
                        try:
                            ringed = prepare_ring(
                                graph, plain, RingRequest(capacity=budget, policy=policy, depth=depth)
                            )
                        except ArenaTooSmall:
                            continue
                        seconds = time.perf_counter() - start
                        judge(graph, ringed, token=token_from_seed(0))
                        assert ringed.ring
                        name = f"{policy} {depth or ''}".strip()
                        figures_by_policy[name] = (ringed.ring.depth, figures_of(problem, ringed.ring), seconds)
                yield architecture.name, budget, list(rows(figures_by_policy))


def rows(figures_by_policy: dict[str, tuple[int, Figures, float]]) -> Iterator[str]:
    pure = figures_by_policy["skip_end"][1].bandwidth if "skip_end" in figures_by_policy else 0
    for name, (depth, figures, seconds) in figures_by_policy.items():
        times = f"{figures.bandwidth / pure:14.2f}" if pure else " " * 13 + "-"
        yield (
            f"{name:9}{depth:5}{figures.pass_ns / GB:12.4f}{figures.utilization_ppm / 10_000:10.2f}%"
            f"{figures.bandwidth / GB:6.1f}  {times}  {figures.limit:9}{seconds:7.2f}"
        )


def sequences(count: int) -> Iterator[str]:
    slower: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for seed in range(count):
        problem, pick = random_layers(seed), random.Random(-seed)
        room = pick.randint(max(problem.bytes), sum(problem.bytes))
        ours = POLICY["cyclic"](problem, room, 0)
        for policy in POLICIES:
            candidate = POLICY[policy](problem, room, 0)
            if candidate and ours and ours.pass_time.ns:
                slower[policy].append(candidate.pass_time.ns / ours.pass_time.ns)
    for policy, ratios in slower.items():
        worse, faster = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
        yield (
            f"{policy:9} fits {len(ratios):6} of {count}; slower in {worse:6}, faster in {faster:6}; "
            f"mean {mean(ratios or [1]):.3f}, worst {max(ratios, default=1):.2f} times ours"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has it; none for '-'")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random sequences of layers")
    options = parser.parse_args(arguments)
    for name, budget, table in models(options.only):
        print(
            f"{name} in {budget / GB:.2f} GB, link 24 GB/s, 10 us per copy", HEADING, *table, "", sep="\n", flush=True
        )
    for line in sequences(options.random) if options.random else ():
        print(line)


if __name__ == "__main__":
    main()
