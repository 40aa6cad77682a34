"""What is simulated: agents, what a step takes, a device, a host tier and a link. Times are ns, sizes bytes."""

import random
from dataclasses import dataclass
from typing import Final

from tmmu.engine.policies.swapper import SwapLimits

DRAW_BITS: Final = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGroup:
    """Agents of one kind. Each reads a prompt, then decodes ``rounds`` times and waits between.

    ``kv``: bytes of its state from the end of the prompt on, of which each token changes one part in
    ``prefill_tokens``. ``resume_tokens``: read whenever it comes back. ``wait_spread_ns``: a wait is drawn evenly from
    so much below to so much above ``wait_ns``. ``expected_ns``: how long it says that it will wait; ``soon_ns``: how
    long before it is back it says that it will be. ``timeout_ns``: how long its client waits for a first token.
    """

    name: str
    count: int
    arrivals_ns: int
    kv: int
    prefill_tokens: int
    prefill_ns: int
    decode_tokens: int
    rounds: int
    wait_ns: int
    wait_spread_ns: int = 0
    wait_kind: str = "wait"
    resume_tokens: int = 0
    expected_ns: int | None = None
    soon_ns: int | None = None
    timeout_ns: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes that one token changes, rounded up."""
        return -(-self.kv // self.prefill_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWorkload:
    """A workload. A decode step takes ``decode_ns`` for up to ``batch`` rows; prompts are read in steps of
    ``prompt_step`` tokens, one session at a time, so that decode steps run in between. A chunk costs ``copy_ns`` beside
    its bytes.
    """

    seed: int
    limits: SwapLimits
    copy_ns: int
    batch: int
    decode_ns: int
    prompt_step: int
    groups: tuple[AgentGroup, ...]

    @property
    def agents(self) -> int:
        """How many there are."""
        return sum(group.count for group in self.groups)

    @property
    def resident_bytes(self) -> int:
        """What all agents would take at once."""
        return sum(group.count * group.kv for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScript:
    """What one agent does, whatever the policy: when it comes, and how long each wait between its rounds takes."""

    number: int
    group: AgentGroup
    arrival_ns: int
    waits_ns: tuple[int, ...]


def scripts_of(workload: SessionWorkload) -> tuple[AgentScript, ...]:
    """All agents, by number. The same for the same workload on every machine; a group draws as if it were alone."""
    scripts: list[AgentScript] = []
    for index, group in enumerate(workload.groups):
        draws = random.Random(workload.seed << 16 | index)
        for _ in range(group.count):
            arrival = _part(draws, group.arrivals_ns)
            low = group.wait_ns - group.wait_spread_ns
            waits = tuple(low + _part(draws, 2 * group.wait_spread_ns) for _ in range(group.rounds - 1))
            scripts.append(AgentScript(number=len(scripts), group=group, arrival_ns=arrival, waits_ns=waits))
    return tuple(scripts)


def _part(draws: random.Random, whole: int) -> int:
    """Drawn evenly from ``0 .. whole``. Whole numbers alone, so that no rounding differs between machines."""
    return draws.getrandbits(DRAW_BITS) * (whole + 1) >> DRAW_BITS
