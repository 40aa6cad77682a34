"""The link that weights and swaps share: weights come behind swaps, and have their turn in the end."""

from threading import Thread

import pytest

from tests.engine.models import model_of, prompt_of, reference_tokens
from tests.engine.swaps import Swaps, swapping_of, swaps_on
from tests.engine.test_ring import room_of
from tmmu.engine.engine import Engine
from tmmu.engine.policies.swapper import PATIENCE
from tmmu.errors import InternalError
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Device

SOON = 0.05
LONG = 30.0


class Waiting:
    """A thread that waits for the turn of so many bytes of weights."""

    def __init__(self, swaps: Swaps, size: int) -> None:
        self.failure: BaseException | None = None
        self.thread = Thread(target=lambda: swaps.swapping.wait_for_weights_turn(size), daemon=True)
        self.thread.start()

    def has_its_turn(self, within: float = LONG) -> bool:
        self.thread.join(within)
        return not self.thread.is_alive()


def swapped(names: str, *, rooms: int = 2, host: int = 1000) -> Swaps:
    """Sessions with a few positions each, of which all but the last ones are on the host, on a device that is dry."""
    device: Device = ExplorerDevice()
    swaps = swaps_on(device, rooms=rooms, host=host)
    for name in names:
        swaps.open(name)
        for _ in range(4):
            swaps.run(name)
            swaps.land_all()
    return swaps


def test_weights_go_at_once_where_nobody_else_wants_the_link() -> None:
    swaps = swapped("a", rooms=1)
    assert Waiting(swaps, 100).has_its_turn()


def test_weights_wait_for_a_session_that_comes_back() -> None:
    swaps = swapped("abc", rooms=1)
    swaps.swapping.need(swaps.owners["a"])  # the one that is there leaves, in three chunks, of which two are in flight
    assert len(swaps.link.in_flight) == 2
    weights = Waiting(swaps, 4)
    assert not weights.has_its_turn(SOON)
    while not weights.has_its_turn(SOON):
        assert swaps.link.in_flight, "weights wait, and nothing is under way that they could wait for"
        swaps.land()
    swaps.land_all()
    assert swaps.swapping.may_run(swaps.owners["a"])


def test_weights_are_passed_over_a_bounded_number_of_times() -> None:
    names = "abcdefgh"
    swaps = swapped(names + names.upper(), rooms=len(names))
    for name in names.upper():  # those that are there go for good, so that all of the others can come at once
        swaps.swapping.close(swaps.owners[name])
    swaps.land_all()
    for name in names:
        swaps.swapping.need(swaps.owners[name])
    weights, landed = Waiting(swaps, 4), 0
    while not weights.has_its_turn(SOON):
        swaps.land()
        landed += 1
    chunks_left = sum(not swaps.swapping.may_run(swaps.owners[name]) for name in names)
    assert 0 < landed <= PATIENCE + 2
    assert chunks_left  # others would have gone on


def test_weights_of_a_device_that_failed_do_not_wait() -> None:
    swaps = swapped("ab", rooms=1)
    arbiter = swaps.swapping._swapper.arbiter
    swaps.swapping._failure = InternalError("a copy of a session's state has failed")
    assert Waiting(swaps, 1 << 20).has_its_turn()
    assert arbiter.remaining(-1, "weights") == 0


def test_every_piece_of_weights_asks_and_tokens_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("GPT-2")
    with Engine(model, max_tokens=64, max_sessions=1) as engine:
        arena = engine.open().arena_bytes
    with Engine(model, max_tokens=64, ring=room_of(model), heap=arena, host="1GB") as engine:
        assert engine.stream is not None
        sizes: list[int] = []
        take_turn = engine.stream.before_piece
        assert take_turn == swapping_of(engine).wait_for_weights_turn

        def note(size: int) -> None:
            sizes.append(size)
            take_turn(size)

        monkeypatch.setattr(engine.stream, "before_piece", note)
        sessions = [engine.open() for _ in range(2)]
        prompts = [prompt_of(16, seed) for seed in range(2)]
        found = [list(s.generate(prompt, 4, stop=())) for s, prompt in zip(sessions, prompts, strict=True)]
        found = [t + list(s.generate([t[-1]], 4, stop=())) for s, t in zip(sessions, found, strict=True)]
        assert found == [reference_tokens(model, prompt, 8) for prompt in prompts]
        assert sum(sizes) == engine.stream.figures["moved_bytes"]
        assert engine.host.counts.sessions_in >= 2
