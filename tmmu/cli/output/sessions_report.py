"""The report of ``tmmu sessions simulate``, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tmmu.codec.printable import align_columns
from tmmu.engine.simulation.results import SimulationResult, percentile
from tmmu.engine.simulation.workload import SessionWorkload

PERCENTS: Final = (50, 90, 99)
HEADING: Final = ("policy", "resume p50", "p90", "p99", "first p99", "tokens/s", "success", "in", "out", "link")


def lines(name: str, workload: SessionWorkload, results: Sequence[SimulationResult]) -> Iterator[str]:
    """The report as text; times in milliseconds, sizes in decimal units."""
    limits, total = workload.limits, gigabytes(workload.resident_bytes)
    host = "without a budget" if limits.host is None else f"of {gigabytes(limits.host)}"
    yield (
        f"{name}: {workload.agents} agents, {total} in all, on {gigabytes(limits.device)}; "
        f"link {gigabytes(limits.bytes_per_second)}/s, host tier {host}"
    )
    yield ""
    yield from align_columns("<>>>>>>>>>", HEADING, [_row(result) for result in results])
    yield ""
    yield "resume, first: from a request to its first token, in ms; one that timed out counts with its time-out"


def _row(result: SimulationResult) -> tuple[str, ...]:
    resumes = [_milliseconds(percentile(result.resumes_ns, percent)) for percent in PERCENTS]
    return (
        result.policy,
        *resumes,
        _milliseconds(percentile(result.first_tokens_ns, 99)),
        _tenths(result.tokens_per_second // 100),
        f"{_tenths(result.success_ppm // 1000)} %",
        gigabytes(result.bytes_in),
        gigabytes(result.bytes_out),
        f"{_tenths(result.link_ns * 1000 // max(result.end_ns, 1))} %",
    )


def record(workload: SessionWorkload, results: Sequence[SimulationResult]) -> dict[str, Any]:
    """The report as one JSON object; times in ns, sizes in bytes, shares in parts per million."""
    return {
        "agents": workload.agents,
        "bytes": workload.resident_bytes,
        "budget": workload.limits.device,
        "host_budget": workload.limits.host,
        "link": workload.limits.bytes_per_second,
        "policies": {result.policy: _record(result) for result in results},
    }


def _record(result: SimulationResult) -> dict[str, Any]:
    percentiles = {
        name: {f"p{percent}": percentile(latencies, percent) for percent in PERCENTS}
        for name, latencies in (("resume_ns", result.resumes_ns), ("first_token_ns", result.first_tokens_ns))
    }
    counts = ("succeeded", "timeouts", "tokens", "end_ns", "compute_ns", "link_ns")
    sizes = ("bytes_in", "bytes_out", "peak_device", "peak_host", "success_ppm")
    return {
        "resumes": len(result.resumes_ns),
        **percentiles,
        **{name: getattr(result, name) for name in counts + sizes},
        "tokens_per_1000s": result.tokens_per_second,
    }


def gigabytes(size: int) -> str:
    """A size in the decimal unit that fits, to a tenth."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{_tenths(size * 10 // scale)} {unit}"
    return f"{size} B"


def _milliseconds(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else _tenths(duration_ns // 100_000)


def _tenths(tenths: int) -> str:
    return f"{tenths // 10}.{tenths % 10}"
