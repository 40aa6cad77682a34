"""The policies by name, in the order of reports. Another one is one file and one row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tmmu.engine.policies.hint import decide_hint
from tmmu.engine.policies.hold import decide_hold
from tmmu.engine.policies.idle import decide_idle
from tmmu.engine.policies.lru import decide_lru
from tmmu.engine.policies.predicted import decide_predicted
from tmmu.engine.policies.static import decide_static
from tmmu.engine.policies.views import Decision, Situation
from tmmu.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPolicy:
    """A policy: a pure function, and what it does in one line. ``evicts``: whether anybody ever makes room."""

    name: str
    summary: str
    decide: Callable[[Situation], Decision]
    evicts: bool = True


POLICIES: Final = (
    SwapPolicy(name="lru", summary="evicts the least recently used when room is needed", decide=decide_lru),
    SwapPolicy(name="idle", summary="evicts whoever had no step for a second", decide=decide_idle),
    SwapPolicy(name="hint", summary="swaps ahead by what clients say of their waits", decide=decide_hint),
    SwapPolicy(name="predicted", summary="swaps ahead by earlier waits of a kind", decide=decide_predicted),
    SwapPolicy(name="hold", summary="evicts nobody, others wait", decide=decide_hold, evicts=False),
    SwapPolicy(name="static", summary="fixed partitions, each with sessions of its own", decide=decide_static),
)


def policy_named(name: str) -> SwapPolicy:
    """The row of this name; ``INVALID_CONFIG`` if there is none."""
    for policy in POLICIES:
        if policy.name == name:
            return policy
    names = ", ".join(policy.name for policy in POLICIES)
    raise InvalidConfig(f"no policy {name!r:.40}", fix=f"choose one of {names}", policy=str(name)[:40])
