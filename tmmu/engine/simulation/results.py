"""What a simulation says of a policy."""

from dataclasses import dataclass
from typing import Final

NS_PER_SECOND: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy on one workload. Latencies in ns, ascending: from a request to the end of the step of its first token.

    A request whose client gave up counts with its time-out. ``peak_device`` and ``peak_host``: most bytes at once.
    """

    policy: str
    agents: int
    succeeded: int
    timeouts: int
    resumes_ns: tuple[int, ...]
    first_tokens_ns: tuple[int, ...]
    tokens: int
    end_ns: int
    compute_ns: int
    link_ns: int
    bytes_in: int
    bytes_out: int
    peak_device: int
    peak_host: int

    @property
    def success_ppm(self) -> int:
        """Agents that did all their rounds, in parts per million."""
        return self.succeeded * 1_000_000 // max(self.agents, 1)

    @property
    def tokens_per_second(self) -> int:
        """Decoded tokens by the time from 0 to the end, in thousandths."""
        return self.tokens * 1000 * NS_PER_SECOND // max(self.end_ns, 1)


def percentile(ascending: tuple[int, ...], percent: int) -> int | None:
    """The smallest value that so many per cent of them do not pass (nearest rank); ``None`` of nothing."""
    if not ascending:
        return None
    return ascending[max(-(-len(ascending) * percent // 100), 1) - 1]
