"""Simulated sessions: events in virtual time around a ``Swapper``, which decides and swaps as it does for real.

One device that runs a step at a time, one link that copies a chunk at a time, agents that follow their scripts. Events
of one moment are handled in the order in which they were made; then decisions, chunks and steps begin. Whole ns.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Final

from tmmu.engine.policies.arbiter import Chunk
from tmmu.engine.policies.swapper import Swapper
from tmmu.engine.policies.table import SwapPolicy, policy_named
from tmmu.engine.simulation.recording import Recording
from tmmu.engine.simulation.results import NS_PER_SECOND, SimulationResult
from tmmu.engine.simulation.workload import AgentGroup, AgentScript, SessionWorkload, scripts_of

PERFECT: Final = "perfect"
"""The policy ``hint`` with clients that know to the ns when they will be back."""
ALL_FIT: Final = "all fit"
"""A device with room for every agent: what is left is waiting for steps."""


@dataclass(slots=True, eq=False)
class _Agent:
    """An agent under way. ``prompt``: tokens to read before one is decoded; ``tokens``: to decode in this round."""

    script: AgentScript
    session: int = -1
    round: int = 0
    prompt: int = 0
    tokens: int = 0
    asked_ns: int | None = None
    """Since when its client waits for a first token; ``None`` where it does not."""
    is_over: bool = False

    @property
    def group(self) -> AgentGroup:
        return self.script.group

    @property
    def live(self) -> int:
        """Bytes of its state, in proportion to what has been read of the first prompt."""
        if self.round:
            return self.group.kv
        return self.group.kv * (self.group.prefill_tokens - self.prompt) // self.group.prefill_tokens


def simulate(
    workload: SessionWorkload, policy: SwapPolicy, recording: Recording | None = None, *, knows: bool = False
) -> SimulationResult:
    """What the policy does to the workload. ``knows``: it is told when waits end. O(events * sessions) at worst."""
    return _Simulation(workload, policy, recording or Recording(is_on=False), knows=knows).run()


def bounds(workload: SessionWorkload) -> tuple[SimulationResult, SimulationResult]:
    """``perfect`` and ``all fit``, which stand beside the policies."""
    perfect = replace(simulate(workload, policy_named("hint"), knows=True), policy=PERFECT)
    largest = max(workload.limits.device, workload.resident_bytes)
    roomy = replace(workload, limits=replace(workload.limits, device=largest))
    return perfect, replace(simulate(roomy, policy_named("hold")), policy=ALL_FIT)


class _Simulation:
    def __init__(self, workload: SessionWorkload, policy: SwapPolicy, recording: Recording, *, knows: bool) -> None:
        self.workload, self.recording, self.knows = workload, recording, knows
        self.swapper = Swapper(policy, workload.limits)
        self.agents = [_Agent(script) for script in scripts_of(workload)]
        self.of_session: dict[int, _Agent] = {}
        self.queue: deque[_Agent] = deque()
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.event_count = 0
        self.now = self.end = self.link_free = self.compute_ns = self.link_ns = 0
        self.is_computing = self.must_decide = False
        self.tokens = self.succeeded = self.timeouts = self.peak_device = self.peak_host = 0
        self.resumes: list[int] = []
        self.first_tokens: list[int] = []
        self.asks: set[int] = set()

    def run(self) -> SimulationResult:
        for agent in self.agents:
            self._schedule(agent.script.arrival_ns, partial(self._arrive, agent))
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                heappop(self.events)[2]()
            self._settle()
        return self._result()

    def _schedule(self, time: int, event: Callable[[], None]) -> None:
        heappush(self.events, (time, self.event_count, event))
        self.event_count += 1

    # -- agents

    def _arrive(self, agent: _Agent) -> None:
        agent.session = self.swapper.open(agent.group.kv, self.now)
        self.of_session[agent.session] = agent
        self._ask(agent, agent.group.prefill_tokens)

    def _resume(self, agent: _Agent) -> None:
        self.swapper.need(agent.session, self.now)
        self._ask(agent, agent.group.resume_tokens)

    def _ask(self, agent: _Agent, prompt: int) -> None:
        """The client waits for a first token from now on, behind so many tokens of a prompt."""
        agent.prompt, agent.tokens, agent.asked_ns = prompt, agent.group.decode_tokens, self.now
        self.must_decide = True
        self.recording.state(agent.script.number, self.now, "blocked")
        if agent.group.timeout_ns is not None:
            self._schedule(self.now + agent.group.timeout_ns, partial(self._give_up, agent, self.now))

    def _give_up(self, agent: _Agent, asked_ns: int) -> None:
        """The client closes the session where it still waits for what it asked for then."""
        if agent.asked_ns != asked_ns:
            return
        self.timeouts += 1
        self._answer(agent)
        self._finish(agent)

    def _answer(self, agent: _Agent) -> None:
        if agent.asked_ns is not None:
            (self.resumes if agent.round else self.first_tokens).append(self.now - agent.asked_ns)
            agent.asked_ns = None

    def _finish(self, agent: _Agent) -> None:
        """The session is closed; a step that is under way ends without it."""
        agent.is_over, self.must_decide = True, True
        self.swapper.close(agent.session)
        if agent in self.queue:
            self.queue.remove(agent)
        self.end = self.now
        self.recording.state(agent.script.number, self.now, "")

    def _end_round(self, agent: _Agent) -> None:
        group = agent.group
        changed = group.token_bytes * (group.decode_tokens + (group.resume_tokens if agent.round else 0))
        agent.round += 1
        if agent.round == group.rounds:
            self.succeeded += 1
            self._finish(agent)
            return
        self.swapper.write(agent.session, self.now, live=agent.live, changed=changed)
        back = self.now + agent.script.waits_ns[agent.round - 1]
        announced = None if group.expected_ns is None else self.now + group.expected_ns
        self.swapper.begin_wait(
            agent.session, self.now, kind=group.wait_kind, expected_ns=back if self.knows else announced
        )
        if group.soon_ns is not None and not self.knows:
            self._schedule(max(self.now, back - group.soon_ns), partial(self._say_soon, agent, back))
        self._schedule(back, partial(self._resume, agent))
        self.must_decide = True
        self.recording.state(agent.script.number, self.now, "wait")

    def _say_soon(self, agent: _Agent, back: int) -> None:
        self.swapper.expect(agent.session, back)
        self.must_decide = True

    # -- the device

    def _settle(self) -> None:
        """Decisions, then chunks, then a step, as far as there is anything to begin."""
        if self.must_decide:
            self.must_decide = False
            ask_ns = self.swapper.decide(self.now)
            if ask_ns is not None and ask_ns not in self.asks and len(self.of_session):
                self.asks.add(ask_ns)
                self._schedule(ask_ns, partial(self._ask_policy, ask_ns))
        while (chunk := self.swapper.next_chunk()) is not None:
            self._copy(chunk)
        for session in self.swapper.take_ready():
            agent = self.of_session[session]
            if agent not in self.queue:
                self.queue.append(agent)
        if not self.is_computing and self.queue:
            self._begin_step()
        self._measure()

    def _ask_policy(self, ask_ns: int) -> None:
        self.asks.discard(ask_ns)
        self.must_decide = True

    def _copy(self, chunk: Chunk) -> None:
        begin = max(self.now, self.link_free)
        size_ns = -(-chunk.size * NS_PER_SECOND // self.workload.limits.bytes_per_second)
        self.link_free = begin + self.workload.copy_ns + size_ns
        self.link_ns += self.link_free - begin
        agent = self.of_session[chunk.key].script.number
        self.recording.chunk(begin, self.link_free, chunk.direction, agent, chunk.size)
        self._schedule(self.link_free, partial(self._land, chunk))

    def _land(self, chunk: Chunk) -> None:
        self.must_decide = self.swapper.landed(chunk) or self.must_decide

    def _begin_step(self) -> None:
        """The prompt step of the first in the queue, or a decode step of those in it that decode, as many as fit."""
        first = self.queue[0]
        if first.prompt:
            self.queue.popleft()
            size = min(self.workload.prompt_step, first.prompt)
            duration = first.group.prefill_ns * size // first.group.prefill_tokens
            self._compute(duration, "prefill", [first], partial(self._end_prompt_step, first, size))
            return
        rows = [agent for agent in self.queue if not agent.prompt][: self.workload.batch]
        chosen = {id(agent) for agent in rows}
        self.queue = deque(agent for agent in self.queue if id(agent) not in chosen)
        self._compute(self.workload.decode_ns, "decode", rows, partial(self._end_decode_step, rows))

    def _compute(self, duration: int, kind: str, rows: list[_Agent], event: Callable[[], None]) -> None:
        self.is_computing = True
        self.compute_ns += duration
        self.recording.step(self.now, self.now + duration, kind, len(rows))
        for agent in rows:
            self.recording.state(agent.script.number, self.now, kind)
        self._schedule(self.now + duration, event)

    def _end_prompt_step(self, agent: _Agent, size: int) -> None:
        """The last step of a prompt gives a first token."""
        self.is_computing = False
        if agent.is_over:
            return
        agent.prompt -= size
        self.swapper.write(agent.session, self.now, live=agent.live, changed=0)
        if not agent.prompt:
            self._answer(agent)
        self.queue.append(agent)

    def _end_decode_step(self, rows: list[_Agent]) -> None:
        self.is_computing = False
        for agent in rows:
            if agent.is_over:
                continue
            self.tokens += 1
            agent.tokens -= 1
            self._answer(agent)
            if agent.tokens:
                self.queue.append(agent)
            else:
                self._end_round(agent)

    # -- what comes of it

    def _measure(self) -> None:
        device, host = self.workload.limits.device - self.swapper.free, self.swapper.copied_bytes
        self.peak_device, self.peak_host = max(self.peak_device, device), max(self.peak_host, host)
        self.recording.count("device bytes", self.now, device)
        self.recording.count("host bytes", self.now, host)

    def _result(self) -> SimulationResult:
        return SimulationResult(
            policy=self.swapper.policy.name,
            agents=len(self.agents),
            succeeded=self.succeeded,
            timeouts=self.timeouts,
            resumes_ns=tuple(sorted(self.resumes)),
            first_tokens_ns=tuple(sorted(self.first_tokens)),
            tokens=self.tokens,
            end_ns=self.end,
            compute_ns=self.compute_ns,
            link_ns=self.link_ns,
            bytes_in=self.swapper.bytes_in,
            bytes_out=self.swapper.bytes_out,
            peak_device=self.peak_device,
            peak_host=self.peak_host,
        )
