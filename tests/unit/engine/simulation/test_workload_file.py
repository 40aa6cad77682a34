"""Workload files: the example as it is, and what is refused."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.engine.simulation.workload_file import FILE_LIMIT, load_workload, parse_duration, parse_workload, with_agents
from tmmu.errors import InvalidConfig

EXAMPLE = Path(__file__).parents[4] / "examples" / "workloads" / "fifty-agents.toml"
TEXT = EXAMPLE.read_text("utf-8")
S = 10**9


def test_example_is_the_first_experiment() -> None:
    workload = load_workload(EXAMPLE)
    limits, group = workload.limits, workload.groups[0]
    assert (workload.agents, group.kv, limits.device, limits.bytes_per_second) == (50, 2 * S, 60 * S, 24 * S)
    assert (group.prefill_ns, group.decode_tokens, workload.decode_ns, workload.batch) == (S // 5, 50, S // 40, 8)
    assert (group.wait_ns, group.arrivals_ns, limits.host) == (10 * S, 60 * S, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 0", "seed = -1", "seed is -1"),
        ("seed = 0", "sede = 0", "the file: no key 'sede'"),
        ("[device]", "[devise]", "the file: no key 'devise'"),
        ("[[agents]]", "[agents]", "agents: not 1 to 64 tables"),
        ('budget = "60GB"  ', "", r"\[device\]: budget is missing"),
        (
            'budget = "60GB"  ',
            'budget = "1GB"',
            "1: kv is 2000000000 bytes, the budget of the device 1000000000",
        ),
        ('budget = "60GB"  ', "budget = 60", r"\[device\] budget is 60"),
        ('budget = "60GB"  ', 'budget = "2000TiB"', r"\[device\] budget is '2000TiB'"),
        ("batch = 8", "batch = true", r"\[device\] batch is True"),
        ("batch = 8", "batch = 8.5", r"\[device\] batch is 8.5"),
        ('decode_step = "25ms"', 'decode_step = "0ms"', r"\[device\] decode_step is '0ms'"),
        ('decode_step = "25ms"', 'decode_step = "25"', r"\[device\] decode_step is '25'"),
        ('rate = "24GB/s"', 'rate = "24GB"', r"\[link\] rate is '24GB'"),
        ('rate = "24GB/s"', "rate = 24", r"\[link\] rate is 24"),
        ('in_flight = "128MB"', 'in_flight = "1MB"', r"\[link\] in_flight is less than a chunk"),
        ('chunk = "64MB"', 'chunk = "1B"', "50 agents with 2200000"),
        ("count = 50", "count = 10001", r"\[\[agents\]\] 1 count is 10001"),
        ("rounds = 10", "rounds = 1048576", "50 agents with 5976886600"),
        ('wait = "10s"', 'wait = "10s"\nwait_spread = "11s"', "wait_spread is more than wait"),
        ('wait = "10s"', 'wait = "25h"', r"\[\[agents\]\] 1 wait is '25h'"),
        ('name = "agent"', 'name = "a\\u001b[31m"', r"\[\[agents\]\] 1 name is 'a\\x1b"),
        ('name = "agent"', 'name = "agent"\nname = "b"', "it is no TOML: "),
        ("count = 50", "count = 50\ncolour = 1", r"\[\[agents\]\] 1: no key 'colour'"),
        ("seed = 0", "seed = " + "[" * 5000, "it is no TOML: "),
        ("seed = 0", "seed = " + "9" * 5000, "it is no TOML: "),
    ],
)
def test_what_is_wrong_is_refused_by_name(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidConfig, match=message):
        parse_workload(TEXT.replace(old, new))


def test_file_is_named(tmp_path: Path) -> None:
    for name, content in (("a", b"\xff"), ("b", b"seed = 1"), ("c", b"#" * (FILE_LIMIT + 1))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidConfig, match=str(tmp_path / name)):
            load_workload(tmp_path / name)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidConfig, match="cannot read"):
            load_workload(missing)


def test_more_agents_are_refused_where_they_are_too_many() -> None:
    workload = parse_workload(TEXT)
    assert with_agents(workload, 400).agents == 400
    with pytest.raises(InvalidConfig, match="10001 agents"):
        with_agents(workload, 10_001)


@pytest.mark.parametrize(
    ("text", "duration"),
    [("10s", 10 * S), ("1.5 ms", 1_500_000), ("2min", 120 * S), ("0.0000000019s", None), ("-1s", None), ("s", None)],
)
def test_durations(text: str, duration: int | None) -> None:
    assert parse_duration(text) == duration


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.text('[]"=#.\n 0a-', max_size=3)), min_size=1, max_size=5))
def test_any_text_is_a_workload_or_refused(edits: list[tuple[int, str]]) -> None:
    text = TEXT
    for place, insert in edits:
        text = text[:place] + insert + text[place + len(insert) // 2 :]
    with suppress(InvalidConfig):
        assert 1 <= parse_workload(text).agents <= 10_000
