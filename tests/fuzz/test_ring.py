"""Rings from hostile files are refused or judged to the end."""

import random
from typing import Any

import cbor2
import pytest
from blake3 import blake3

from tests.layered import layered_graph, plan_graph
from tmmu.codec.read import read_plan
from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor
from tmmu.ir.plan import encode_plan
from tmmu.judge.check import check_plan
from tmmu.planner.ring.prepare import RingRequest, prepare_ring

GRAPH = layered_graph((512, 1024, 512, 768, 512, 1024), tied=256)
DATA = encode_plan(prepare_ring(GRAPH, plan_graph(GRAPH), RingRequest(capacity=2304, policy="skip_end")))
NUMBERS = (0, 1, 2, 3, 7, 64, 256, 512, 4096, 2**32, 2**63, 2**64 - 1)


def scramble(value: Any, pick: random.Random) -> Any:
    """One number, row or column of a ring's map changed, dropped or repeated."""
    if isinstance(value, dict):
        key = pick.choice(sorted(value))
        return {**value, key: scramble(value[key], pick)}
    if isinstance(value, list) and value:
        index = pick.randrange(len(value))
        act = pick.randrange(8)
        if act == 0:
            return value[:index] + value[index + 1 :]
        if act == 1:
            return value[:index] + value[index : index + 1] * 2 + value[index + 1 :]
        return [*value[:index], scramble(value[index], pick), *value[index + 1 :]]
    if isinstance(value, bool):
        return not value
    return pick.choice(NUMBERS) if isinstance(value, int) else value


def sign(top: dict[str, Any]) -> bytes:
    top = {key: value for key, value in top.items() if key != "digest"}
    return cbor.encode(top | {"digest": blake3(cbor.encode(top)).digest()})


@pytest.mark.parametrize("attempts", [400, pytest.param(1500, marks=pytest.mark.slow)])
def test_scrambled_ring_is_refused_or_judged(attempts: int) -> None:
    pick, sound = random.Random(1), cbor2.loads(DATA)
    outcomes = {"refused": 0, "judged": 0, "sound": 0}
    for _ in range(attempts):
        ring = sound["ring"]
        for _ in range(pick.randint(1, 3)):
            ring = scramble(ring, pick)
        try:
            plan = read_plan(sign({**sound, "ring": ring}))
        except PlanCorrupt:
            outcomes["refused"] += 1
            continue
        outcomes["judged" if check_plan(GRAPH, plan) else "sound"] += 1
    assert min(outcomes.values()) > attempts / 150
