"""The TOML file of a workload (docs/spec/sessions.md): every table and key is known, every number in its range."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from tmmu.codec.files import read_file
from tmmu.engine.policies.swapper import SwapLimits
from tmmu.engine.simulation.workload import AgentGroup, SessionWorkload
from tmmu.errors import InvalidConfig, PlanCorrupt, UserError
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.profile import parse_rate

FILE_LIMIT: Final = 1 << 20
MAX_GROUPS: Final = 64
MAX_AGENTS: Final = 10_000
MAX_TOKENS: Final = 10**8
"""Decoded tokens and chunks of a workload: what a simulation is linear in."""
DAY_NS: Final = 86_400 * 10**9
SIZE_LIMIT: Final = 1 << 50
_DURATION: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?\s*(ns|us|ms|s|min|h)", re.ASCII)
_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}

Reader: TypeAlias = Callable[[str, object], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A key of a table: the field that it sets, how it is read, and whether it may be left out."""

    field: str
    read: Reader
    is_optional: bool = False


def load_workload(path: Path) -> SessionWorkload:
    """The workload of a file; ``INVALID_CONFIG`` that names the file and the key for whatever is wrong with it."""
    try:
        return parse_workload(_text_of(path))
    except UserError as error:
        if str(path) in error.what:
            raise
        raise InvalidConfig(f"{path}: {error.what}", fix=error.fix, path=str(path), **error.fields) from error


def _text_of(path: Path) -> str:
    try:
        return read_file(path, limit=FILE_LIMIT).decode("utf-8")
    except PlanCorrupt as error:
        raise InvalidConfig(error.what, fix="name a workload, which is smaller", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidConfig("it is no text in UTF-8", fix="write a TOML file") from error


def parse_workload(text: str) -> SessionWorkload:
    """The workload that the text says; ``INVALID_CONFIG`` for anything else."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InvalidConfig(f"it is no TOML: {str(error) or 'nested too deeply'}", fix="mend it there") from error
    _refuse_unknown("the file", tables, ("seed", "device", "link", "host", "agents"))
    device = _table("[device]", tables.get("device"), DEVICE)
    link, host = _table("[link]", tables.get("link"), LINK), _table("[host]", tables.get("host", {}), HOST)
    copy_ns = link.pop("copy_ns", 0)
    limits = SwapLimits(device=device.pop("budget"), **link, **host)
    workload = SessionWorkload(
        seed=_count(0, 2**32 - 1)("seed", tables.get("seed", 0)),
        limits=limits,
        copy_ns=copy_ns,
        groups=_groups(tables.get("agents")),
        **device,
    )
    _check(workload)
    return workload


def with_agents(workload: SessionWorkload, count: int) -> SessionWorkload:
    """The same with so many agents in its first group; ``INVALID_CONFIG`` where they are too many to simulate."""
    first = replace(workload.groups[0], count=count)
    changed = replace(workload, groups=(first, *workload.groups[1:]))
    _check(changed)
    return changed


def _groups(rows: object) -> tuple[AgentGroup, ...]:
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_GROUPS:
        raise InvalidConfig(f"agents: not 1 to {MAX_GROUPS} tables", fix="write one as [[agents]]")
    return tuple(AgentGroup(**_table(f"[[agents]] {number}", row, AGENTS)) for number, row in enumerate(rows, 1))


def _table(title: str, table: object, keys: Mapping[str, _Key]) -> dict[str, Any]:
    """The fields that a table sets."""
    if not isinstance(table, dict):
        raise InvalidConfig(f"{title}: no such table", fix="write it")
    _refuse_unknown(title, table, tuple(keys))
    missing = [name for name, key in keys.items() if not key.is_optional and name not in table]
    if missing:
        raise InvalidConfig(f"{title}: {missing[0]} is missing", fix=f"write {missing[0]} = …")
    return {keys[name].field: keys[name].read(f"{title} {name}", value) for name, value in table.items()}


def _refuse_unknown(title: str, table: Mapping[str, object], names: Sequence[str]) -> None:
    for name in table:
        if name not in names:
            raise InvalidConfig(f"{title}: no key {name!r:.40}", fix=f"it has {', '.join(names)}")


def _count(low: int, high: int) -> Reader:
    def read(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidConfig(f"{key} is {value!r:.40}", fix=f"give a whole number from {low} to {high}")
        return value

    return read


def _duration(low_ns: int) -> Reader:
    def read(key: str, value: object) -> int:
        duration = parse_duration(value) if isinstance(value, str) else None
        if duration is None or not low_ns <= duration <= DAY_NS:
            least = "" if not low_ns else ", more than nothing"
            raise InvalidConfig(f"{key} is {value!r:.40}", fix=f"give a time of at most a day, as 10s or 25ms{least}")
        return duration

    return read


def parse_duration(text: str) -> int | None:
    """Nanoseconds of a text such as ``10s``, ``25ms`` or ``1.5s``; ``None`` for any other."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    part = match[2] or ""
    duration: int = int(match[1] + part) * _UNITS[match[3]] // 10 ** len(part)
    return duration


def _size(key: str, value: object) -> int:
    try:
        size = parse_size(value) if isinstance(value, str) else 0
    except UserError:
        size = 0
    if not 0 < size <= SIZE_LIMIT:
        raise InvalidConfig(f"{key} is {value!r:.40}", fix="give a size of at most 1 PiB, as 2GB or 64MiB")
    return size


def _rate(key: str, value: object) -> int:
    try:
        return parse_rate(value if isinstance(value, str) else "", "B")
    except UserError as error:
        raise InvalidConfig(f"{key} is {value!r:.40}", fix="give a rate, as 24GB/s") from error


def _word(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 64 or not value.isprintable():
        raise InvalidConfig(f"{key} is {value!r:.40}", fix="give a name of at most 64 characters")
    return value


DEVICE: Final = {
    "budget": _Key(field="budget", read=_size),
    "batch": _Key(field="batch", read=_count(1, 1 << 16)),
    "decode_step": _Key(field="decode_ns", read=_duration(1)),
    "prompt_step": _Key(field="prompt_step", read=_count(1, 1 << 30)),
}
LINK: Final = {
    "rate": _Key(field="bytes_per_second", read=_rate),
    "copy_cost": _Key(field="copy_ns", read=_duration(0), is_optional=True),
    "chunk": _Key(field="chunk", read=_size),
    "in_flight": _Key(field="in_flight", read=_size),
}
HOST: Final = {
    "budget": _Key(field="host", read=_size, is_optional=True),
    "time_to_live": _Key(field="time_to_live_ns", read=_duration(1), is_optional=True),
}
AGENTS: Final = {
    "name": _Key(field="name", read=_word),
    "count": _Key(field="count", read=_count(1, MAX_AGENTS)),
    "arrivals": _Key(field="arrivals_ns", read=_duration(0)),
    "kv": _Key(field="kv", read=_size),
    "prefill_tokens": _Key(field="prefill_tokens", read=_count(1, 1 << 30)),
    "prefill": _Key(field="prefill_ns", read=_duration(1)),
    "decode_tokens": _Key(field="decode_tokens", read=_count(1, 1 << 30)),
    "rounds": _Key(field="rounds", read=_count(1, 1 << 20)),
    "wait": _Key(field="wait_ns", read=_duration(0)),
    "wait_spread": _Key(field="wait_spread_ns", read=_duration(0), is_optional=True),
    "wait_kind": _Key(field="wait_kind", read=_word, is_optional=True),
    "resume_tokens": _Key(field="resume_tokens", read=_count(0, 1 << 30), is_optional=True),
    "expected": _Key(field="expected_ns", read=_duration(0), is_optional=True),
    "resume_soon": _Key(field="soon_ns", read=_duration(0), is_optional=True),
    "timeout": _Key(field="timeout_ns", read=_duration(1), is_optional=True),
}


def _check(workload: SessionWorkload) -> None:
    """What one key alone does not show: no agent needs more than there is, and the simulation ends in a while."""
    limits = workload.limits
    for number, group in enumerate(workload.groups, 1):
        key = f"[[agents]] {number}"
        if group.kv > limits.device:
            raise InvalidConfig(
                f"{key}: kv is {group.kv} bytes, the budget of the device {limits.device}",
                fix="give a larger budget, or smaller agents",
            )
        if group.wait_spread_ns > group.wait_ns:
            raise InvalidConfig(f"{key}: wait_spread is more than wait", fix="no wait is below 0: give a smaller one")
    if limits.in_flight < limits.chunk:
        raise InvalidConfig("[link] in_flight is less than a chunk", fix="give at least as much as chunk")
    work = sum(_work(workload, group) for group in workload.groups)
    if workload.agents > MAX_AGENTS or work > MAX_TOKENS:
        raise InvalidConfig(
            f"{workload.agents} agents with {work} tokens, prompt steps and chunks",
            fix=f"give at most {MAX_AGENTS} agents, with {MAX_TOKENS} of these; larger chunks are fewer",
        )


def _work(workload: SessionWorkload, group: AgentGroup) -> int:
    """Tokens, prompt steps and chunks of a group, at most."""
    step = workload.prompt_step
    prompts = -(-group.prefill_tokens // step) + group.rounds * -(-group.resume_tokens // step)
    copies = 2 * (group.rounds + 1) * -(-group.kv // workload.limits.chunk)
    return group.count * (group.rounds * group.decode_tokens + prompts + copies)
