"""Simulations: small timelines worked out by hand, what holds of all, and the first experiment."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.simulation.test_workload_file import EXAMPLE
from tests.unit.export.trace_database import trace_database
from tmmu.engine.policies.swapper import SwapLimits
from tmmu.engine.policies.table import POLICIES, policy_named
from tmmu.engine.simulation.recording import Recording, encode_recording
from tmmu.engine.simulation.results import SimulationResult, percentile
from tmmu.engine.simulation.simulate import bounds, simulate
from tmmu.engine.simulation.workload import AgentGroup, SessionWorkload, scripts_of
from tmmu.engine.simulation.workload_file import load_workload

S = 10**9


def workload(
    device: int = 20, host: int | None = None, seed: int = 0, copy_ns: int = 0, **group: Any
) -> SessionWorkload:
    """Agents of 10 bytes that come at 0; a prompt of 2 s in two steps, decode steps of 1 s, a link of 10 bytes/s."""
    fields = {"name": "a", "count": 2, "arrivals_ns": 0, "kv": 10, "prefill_tokens": 10, "prefill_ns": 2 * S}
    fields |= {"decode_tokens": 1, "rounds": 2, "wait_ns": 10 * S, "expected_ns": 10 * S} | group
    limits = SwapLimits(device=device, host=host, chunk=5, in_flight=5, bytes_per_second=10, time_to_live_ns=1000 * S)
    groups = (AgentGroup(**fields),)  # type: ignore[arg-type]
    return SessionWorkload(
        seed=seed, limits=limits, copy_ns=copy_ns, batch=2, decode_ns=S, prompt_step=5, groups=groups
    )


def run(policy: str, load: SessionWorkload) -> SimulationResult:
    return simulate(load, policy_named(policy))


def test_two_agents_share_prompts_in_turn_and_decode_in_one_batch() -> None:
    """Prompt steps end at 1 (first), 2 (second), 3, 4: first tokens after 3 and 4 s. Both decode from 4 to 5, wait, and
    decode again from 15 to 16.
    """
    result = run("lru", workload())
    assert result.first_tokens_ns == (3 * S, 4 * S)
    assert result.resumes_ns == (S, S)
    assert (result.end_ns, result.tokens, result.succeeded, result.compute_ns) == (16 * S, 4, 2, 6 * S)


def test_rows_that_are_ready_decode_together() -> None:
    """Both have read their prompts at 4, and decode three tokens each in three steps."""
    result = run("lru", workload(decode_tokens=3, rounds=1))
    assert (result.tokens, result.compute_ns) == (6, 7 * S)


def test_room_for_one_swaps_when_it_is_needed() -> None:
    """The first reads until 2 and decodes until 3, then leaves in 1 s; the second reads from 4 to 6, decodes to 7. The
    first is back at 13: the second left at 8, the first comes until 14 and decodes until 15. The second is back at 17,
    when the first is closed: it comes until 18 and decodes until 19.
    """
    result = run("lru", workload(device=10))
    assert result.first_tokens_ns == (2 * S, 6 * S)
    assert (result.resumes_ns, result.end_ns) == ((2 * S, 2 * S), 19 * S)
    assert (result.bytes_in, result.bytes_out, result.peak_device) == (20, 20, 10)


def test_hint_has_a_session_back_before_it_is_needed() -> None:
    """As above, but the room of the second is free at 8, and the first is expected at 13, the second at 17."""
    result = run("hint", workload(device=10))
    assert result.resumes_ns == (S, S)
    assert (result.bytes_in, result.bytes_out) == (20, 20)


def test_hold_lets_others_wait_until_their_clients_give_up() -> None:
    """The first is done at 14. The second asked at 0, and would have its first token at 16."""
    result = run("hold", workload(device=10))
    assert (result.first_tokens_ns, result.succeeded) == ((2 * S, 16 * S), 2)
    late = run("hold", workload(device=10, timeout_ns=15 * S))
    assert (late.first_tokens_ns, late.succeeded, late.timeouts) == ((2 * S, 15 * S), 1, 1)


def test_client_that_gives_up_during_a_step_closes_its_session_and_the_others_go_on() -> None:
    result = run("lru", workload(count=3, device=30, timeout_ns=5 * S + 1))
    assert (result.succeeded, result.timeouts, result.tokens) == (2, 1, 4)


def test_each_chunk_costs_beside_its_bytes() -> None:
    result = run("lru", workload(device=10, copy_ns=S // 2))
    assert result.resumes_ns == (3 * S, 3 * S)


def test_prompts_at_each_resume_are_read_before_the_first_token() -> None:
    assert run("lru", workload(count=1, resume_tokens=10)).resumes_ns == (2 * S,)


def test_only_what_changed_is_copied_again() -> None:
    """Ten bytes after the first round, then one a round."""
    assert run("lru", workload(count=1, rounds=4)).bytes_out == 12


def test_full_host_tier_blocks_who_comes_later() -> None:
    result = run("lru", workload(device=10, host=5, timeout_ns=10 * S))
    assert (result.succeeded, result.timeouts, result.bytes_in) == (1, 1, 0)
    assert result.peak_host <= 5


def test_percentiles_are_by_nearest_rank() -> None:
    numbers = tuple(range(1, 101))
    assert [percentile(numbers, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert [percentile((7,), 99), percentile((), 99), percentile((1, 2), 50)] == [7, None, 1]


def test_scripts_depend_on_the_seed_and_on_nothing_of_the_policy() -> None:
    load = workload(count=50, arrivals_ns=60 * S, wait_spread_ns=5 * S, rounds=5)
    scripts = scripts_of(load)
    assert scripts == scripts_of(load) != scripts_of(replace(load, seed=1))
    assert all(0 <= script.arrival_ns <= 60 * S for script in scripts)
    assert all(5 * S <= wait <= 15 * S for script in scripts for wait in script.waits_ns)
    assert len({script.arrival_ns for script in scripts}) == 50


loads = st.builds(
    workload,
    device=st.integers(10, 45),
    host=st.sampled_from((None, 0, 15, 30)),
    seed=st.integers(0, 99),
    count=st.integers(1, 5),
    rounds=st.integers(1, 3),
    arrivals_ns=st.integers(0, 20 * S),
    wait_ns=st.integers(5 * S, 9 * S),
    wait_spread_ns=st.integers(0, 5 * S),
    timeout_ns=st.sampled_from((None, 1, 5 * S, 40 * S)),
    soon_ns=st.sampled_from((None, 0, S)),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=25)
@given(load=loads)
def test_every_request_is_answered_or_given_up_within_the_budgets(policy: Any, load: SessionWorkload) -> None:
    recording = Recording(is_on=True)
    result = simulate(load, policy, recording)
    assert result == simulate(load, policy)
    assert result.peak_device <= load.limits.device
    assert load.limits.host is None or result.peak_host <= load.limits.host
    assert len(result.first_tokens_ns) <= load.agents
    assert result.succeeded + result.timeouts <= load.agents
    if load.groups[0].timeout_ns is not None or (load.limits.host is None and policy.name != "hold"):
        assert result.succeeded + result.timeouts == load.agents
        assert len(result.first_tokens_ns) == load.agents
    for slices in (recording.steps, recording.chunks):
        assert all(before[1] <= after[0] for before, after in pairwise(slices))
    assert result.compute_ns == sum(end - begin for begin, end, *_ in recording.steps)
    assert result.link_ns == sum(end - begin for begin, end, *_ in recording.chunks)


def test_trace_opens_as_a_database_with_the_steps_the_chunks_and_the_agents() -> None:
    recording = Recording(is_on=True)
    result = simulate(workload(device=10), policy_named("lru"), recording)
    database = trace_database(encode_recording(recording, "two: lru", ("a 0", "a 1")))
    slices = "select sum(end - begin), count(*) from slice join track on track.id = slice.track where track.name = ?"
    assert database.execute(slices, ("link",)).fetchone() == (result.link_ns, 8)
    assert database.execute(slices, ("compute",)).fetchone()[0] == result.compute_ns
    names = "select slice.name from slice join track on track.id = slice.track where track.name = 'a 1' order by begin"
    assert [name for (name,) in database.execute(names)] == [
        "blocked", "prefill", "decode", "wait", "blocked", "decode"
    ]  # fmt: skip


@pytest.fixture(scope="module")
def experiment() -> dict[str, SimulationResult]:
    load = load_workload(EXAMPLE)
    return {result.policy: result for result in [*(simulate(load, policy) for policy in POLICIES), *bounds(load)]}


def test_first_experiment_reaches_its_aims(experiment: dict[str, SimulationResult]) -> None:
    p99 = {name: percentile(result.resumes_ns, 99) or 0 for name, result in experiment.items()}
    assert p99["hint"] * 2 <= p99["lru"]
    assert p99["predicted"] < p99["idle"]
    assert p99["all fit"] <= p99["perfect"] <= p99["hint"]
    whole = {name for name, result in experiment.items() if result.success_ppm == 1_000_000}
    assert whole == set(experiment) - {"hold"}
    assert all(result.peak_device <= 60 * S for name, result in experiment.items() if name != "all fit")
