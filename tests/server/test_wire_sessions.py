"""Sessions from afar: the bits of local ones, values that stay there, leases, and clients that are strangers."""

import copy
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.server.folders import save_model
from tests.server.running import RunningServer, running, server_log
from tmmu.client.remote_server import RemoteServer
from tmmu.client.remote_session import RemoteSession
from tmmu.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    KeyRefused,
    ReferenceStale,
    SegmentFull,
    ServerBusy,
    ServerGone,
    SessionUnknown,
)
from tmmu.server.settings import load_settings
from tmmu.wire.session_messages import CloseSession, ForkSession, GenerateTokens, ListKept, LookAtValue, ReadTokens

KEYS = ("first-key-0123456789", "second-key-0123456789")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for two clients, with little room."""
    folder: Path = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text("\n".join(KEYS))
    model = save_model(folder / "model", eos_token_id=None)
    options = {
        "models": {"ids": model}, "listen": "127.0.0.1:0", "budget": "4MiB", "keys": folder / "keys",
        "client_sessions": 3, "lease_seconds": 1, "max_tokens": 128,
    }  # fmt: skip
    with running(load_settings(options)) as server:
        yield server


@pytest.fixture
def remote(server: RunningServer) -> Iterator[RemoteServer]:
    with server.remote() as remote:
        yield remote


def is_empty(server: RunningServer, name: str = "ids") -> bool:
    segments = server.engine(name).segments
    return not server.data_used(name) and not segments.slabs["data"].bytes(0, segments.data.capacity).any()


def test_a_session_from_afar_has_the_bits_of_a_local_one(server: RunningServer, remote: RemoteServer) -> None:
    drawn = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}
    with server.engine("ids").open(96) as local:
        logits, decoded = local.prefill([5, 6, 7]), local.decode(8)
        tokens = list(local.generate([9, 10], 12, **drawn))
        more = list(local.generate(None, 4))
        length = local.length
    with remote.session("ids", expected_tokens=96, qos="realtime") as session:
        assert torch.equal(session.prefill([5, 6, 7]).tensor(), logits)
        assert torch.equal(session.decode(8).tensor(), decoded)
        assert list(session.generate([9, 10], 12, **drawn)) == tokens
        assert list(session.generate(None, 4)) == more
        assert session.length == length
        stopped = list(session.generate([9], 12, stop=[more[0]], temperature=0.0))
        assert len(stopped) <= 12
    server.wait_for(lambda: is_empty(server))
    with pytest.raises(SessionUnknown):
        session.decode(1)


def test_a_token_that_is_chosen_there_moves_less_than_600_bytes(server: RunningServer, remote: RemoteServer) -> None:
    """0.3 % of the logits of a vocabulary of 50,257: both ways, whatever the vocabulary is."""
    with remote.session("ids", expected_tokens=256) as session:
        session.prefill([1])
        counts = server.service.door.counts
        before = counts.bytes_in + counts.bytes_out
        assert len(list(session.generate(max_new_tokens=100, stop=()))) == 100
        assert counts.bytes_in + counts.bytes_out - before < 100 * 0.003 * 4 * 50_257 / 4
        before = counts.bytes_in + counts.bytes_out
        for _ in range(20):
            session.decode(int(session.logits.argmax(-1)))
        assert counts.bytes_in + counts.bytes_out - before < 20 * 0.003 * 4 * 50_257


def test_forks_go_on_by_themselves_and_sessions_are_attached_to_again(server: RunningServer) -> None:
    with server.remote() as first:
        session = first.session("ids", expected_tokens=64)
        logits = session.prefill([1, 2, 3]).tensor()
        other = session.fork()
        session.decode(4)
        assert torch.equal(other.logits.tensor(), logits)
    with server.remote() as second:
        again = second.attach(session.id)
        assert again.length == 4
        assert torch.equal(again.logits.tensor(), second.attach(other.id).decode(4).tensor())
        again.close()
        again.close()
        second.attach(other.id).close()
        with pytest.raises(SessionUnknown):
            second.attach(other.id)
    server.wait_for(lambda: is_empty(server))


def test_what_is_asked_of_values_runs_there(server: RunningServer, remote: RemoteServer) -> None:
    value = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    with remote.session("ids", expected_tokens=64, keep="16KiB") as session:
        kept = session.kept
        kept["value"] = value
        there = kept["value"]
        before = server.service.door.counts.bytes_out
        for name in ("argmax", "argmin", "amax", "amin", "sum", "mean", "norm"):
            for dim in (None, 1, -1):
                options = {} if dim is None else {"dim": dim, "keepdim": True}
                expected = getattr(value, name)(**options)
                assert torch.equal(getattr(there, name)(**options), expected), (name, dim)
        assert server.service.door.counts.bytes_out - before < 21 * 400
        for index in (0, (slice(None), 2), (1, slice(0, 3, 2)), slice(5, 1), (slice(-1, None), -1, slice(None, 2))):
            assert torch.equal(there[index].tensor(), value[index])
        assert there[1, 2, 3].item() == 23.0
        assert there[1][2].tolist() == value[1][2].tolist()
        for mine, other in zip(there[0].topk(2, 0), value[0].topk(2, 0), strict=True):
            assert torch.equal(mine, other)
        counts = copy.copy(remote.counts)
        many = there[0].topk(2, 0)  # 8 values and 8 places, of 12 values
        assert remote.counts.moved_bytes - counts.moved_bytes == 12 * 8
        assert (remote.counts.local, remote.counts.looks) == (counts.local + 1, counts.looks + 1)
        assert remote.counts.value_bytes - counts.value_bytes == 24 * 8
        assert all(torch.equal(mine, other) for mine, other in zip(many, value[0].topk(2, 0), strict=True))
        assert torch.equal(there[0].topk(1, 0)[1], value[0].topk(1, 0)[1])
        assert remote.counts.local == counts.local + 1
        for wrong in (there[5], there[0, 0, 0, 0], there[:, :, :, 2:]):
            with pytest.raises(InvalidRequest, match="step"):
                wrong.tensor()
        for ask in (there.sum, there.topk):
            with pytest.raises(InvalidRequest, match="step"):
                ask(9)
        with pytest.raises(InvalidConfig, match="index"):
            there[None]
        kept["numbers"] = torch.arange(3)
        with pytest.raises(InvalidRequest, match="mean of int64"):
            kept["numbers"].mean()
        assert list(kept) == ["value", "numbers"]
        assert "numbers" in kept
        assert len(kept) == 2
        del kept["numbers"]
        with pytest.raises(InvalidConfig, match="keeps no"):
            kept["numbers"]
        with pytest.raises(SegmentFull):
            kept["large"] = torch.zeros(16 << 10)
        assert torch.equal(kept["value"].tensor(), value)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.complex64]
)
def test_values_of_any_dtype_come_back(remote: RemoteServer, dtype: torch.dtype) -> None:
    value = (torch.arange(6) % 2).to(dtype).reshape(2, 3)[:, ::2]
    with remote.session("ids", expected_tokens=64, keep="4KiB") as session:
        session.kept["value"] = value
        session.kept["none"] = value[:0]
        assert torch.equal(session.kept["value"].tensor(), value)
        assert session.kept["none"].tensor().shape == (0, 2)


def test_values_that_changed_are_stale(remote: RemoteServer) -> None:
    with remote.session("ids", expected_tokens=64, keep="8KiB") as session:
        with pytest.raises(InvalidConfig, match="no tokens"):
            _ = session.logits
        logits = session.prefill([1, 2])
        whole = logits.tensor()
        session.kept["before"] = logits
        with pytest.raises(InvalidConfig, match="own logits"):
            session.kept["part"] = logits[3:]
        before = session.kept["before"]
        list(session.generate([3], 1))
        with pytest.raises(ReferenceStale, match="went on"):
            logits.argmax()
        assert torch.equal(before.tensor(), whole)
        session.kept["before"] = torch.zeros(1)
        with pytest.raises(ReferenceStale, match="replaced"):
            before.sum()


def test_a_ghost_generates_in_the_session_around(remote: RemoteServer) -> None:
    ghost = remote.load("ids")
    whole = ghost.generate([1, 2, 3], 9).tolist()[0]
    with remote.session(ghost, expected_tokens=64) as session:
        first = ghost.generate([1, 2, 3], 4).tolist()[0]
        assert first == whole[:7]
        assert session.length == 6
        assert ghost.generate(first[-1:], 5).tolist()[0] == whole[6:]
    with pytest.raises(InvalidConfig, match="2 models"):
        remote.session()


def test_a_text_that_nobody_reads_any_more_ends(server: RunningServer, remote: RemoteServer) -> None:
    with remote.session("ids", expected_tokens=256) as session:
        tokens = session.generate([1], 250, stop=())
        assert len([next(tokens) for _ in range(3)]) == 3
        tokens.close()  # type: ignore[attr-defined]
        server.wait_for(lambda: not server.service.door.running)
        length = remote.attach(session.id).length
        assert length < 256
        assert session.decode(7).argmax().dtype == torch.int64  # it goes on
        with pytest.raises(DeadlineExceeded):
            list(session.generate([1], 200, stop=(), deadline=0.01))
        server.wait_for(lambda: not server.service.door.running)
        session.decode(8)


def test_a_session_that_is_closed_amid_a_text_ends_it(server: RunningServer, remote: RemoteServer) -> None:
    session = remote.session("ids", expected_tokens=256)
    tokens = session.generate([1], 250, stop=())
    next(tokens)
    remote.attach(session.id).close()
    with pytest.raises(SessionUnknown):
        list(tokens)
    server.wait_for(lambda: is_empty(server) and not server.service.door.running)


def test_texts_of_several_clients_share_steps(server: RunningServer) -> None:
    engine = server.engine("ids")
    with server.remote() as first, server.remote() as second:
        sessions = [each.session("ids", expected_tokens=256) for each in (first, second, first, second)]
        steps, rows = engine.scheduler.steps, engine.scheduler.rows
        texts: list[list[int]] = [[] for _ in sessions]
        threads = [
            threading.Thread(target=lambda text=text, each=each: text.extend(each.generate([7], 60, stop=())))
            for text, each in zip(texts, sessions, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert texts == [texts[0]] * 4
        assert len(texts[0]) == 60
        assert engine.scheduler.rows - rows > 1.2 * (engine.scheduler.steps - steps - 4)
        for each in sessions:
            each.close()


def test_the_log_names_requests_by_their_trace(server: RunningServer, remote: RemoteServer) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    with server_log() as records:
        with remote.trace(f"00-{trace}-b7ad6b7169203331-01") as above, remote.session("ids") as session:
            assert above.traceparent == f"00-{trace}-b7ad6b7169203331-01"
            list(session.generate([1], 2))
        with remote.trace() as own:
            remote.models()
        remote.models()
        server.wait_for(lambda: len([each for each in records if each.getMessage() == "wire_request"]) == 5)
    rows = [record.__dict__["tmmu_fields"] for record in records if record.getMessage() == "wire_request"]
    traced = [
        row["request"] for row in rows if row["trace"] == trace
    ]  # threads end requests, one behind another or not
    assert sorted(traced) == ["sessions.close", "sessions.generate", "sessions.open"]
    assert [row["request"] for row in rows if row["trace"] == own.traceparent[3:35]] == ["models.list"]
    assert len({row["trace"] for row in rows}) == 3
    assert {row["client"] for row in rows} == {"anybody"}
    with pytest.raises(InvalidConfig, match="no traceparent"), remote.trace("00-abc"):
        pass


def test_only_one_request_of_a_session_at_a_time(server: RunningServer, remote: RemoteServer) -> None:
    with remote.session("ids", expected_tokens=256) as session:
        tokens = session.generate([1], 250, stop=())
        next(tokens)
        with pytest.raises(InvalidConfig, match="waits for a step"):
            remote.attach(session.id).decode(1)
        tokens.close()  # type: ignore[attr-defined]
        server.wait_for(lambda: not server.service.door.running)


def test_refusals_of_the_engine_come_back(remote: RemoteServer) -> None:
    with remote.session("ids", expected_tokens=64) as session:
        for tokens in ([256], [-1], [0] * 65):
            with pytest.raises(InvalidConfig):
                session.prefill(tokens)
        with pytest.raises(InvalidConfig, match="no encoder"):
            session.encode([1])
        with pytest.raises(InvalidRequest, match="no tokens"):
            list(session.generate(None))
        for payload in ([], [b""], [b"abc"], [bytes(8)] * 2):
            with pytest.raises(InvalidRequest, match="tokens"):
                remote.request(ReadTokens(session=session.id), [memoryview(each) for each in payload])
        assert session.prefill([1]).argmax().dtype == torch.int64
    with pytest.raises(InvalidConfig, match="tokens"):
        remote.session("ids", expected_tokens=100_000)


def test_a_second_client_can_neither_read_name_guess_nor_end_a_session(keyed: RunningServer) -> None:
    with keyed.remote(KEYS[0]) as first, keyed.remote(KEYS[1]) as second:
        session = first.session(expected_tokens=64, keep="1KiB")
        logits = session.prefill([1, 2, 3]).tensor()
        refused = []
        guess = session.id[:-1] + ("0" if session.id[-1] != "0" else "1")
        for name in (session.id, guess):
            requests = [
                (CloseSession(session=name), []),
                (ForkSession(session=name), []),
                (ListKept(session=name), []),
                (LookAtValue(session=name, epoch=1), []),
                (GenerateTokens(session=name, count=1), [memoryview(bytes(8))]),
                (ReadTokens(session=name), [memoryview(bytes(8))]),
            ]
            for request, payloads in requests:
                with pytest.raises(SessionUnknown) as refusal:
                    second.request(request, payloads)
                refused.append(str(refusal.value))
            with pytest.raises(SessionUnknown) as refusal:
                second.attach(name)
            refused.append(str(refusal.value))
        assert len(set(refused)) == 1  # nothing tells a session of others from none
        assert torch.equal(session.logits.tensor(), logits)
        session.close()
        for key in (None, "no-key-at-all-0123456789"):
            with pytest.raises(KeyRefused), keyed.remote(key):
                pass


def test_a_client_cannot_take_all_the_room(keyed: RunningServer) -> None:
    with keyed.remote(KEYS[0]) as greedy, keyed.remote(KEYS[1]) as other:
        sessions = [greedy.session(expected_tokens=64) for _ in range(3)]
        with pytest.raises(ServerBusy, match="most of one client") as refusal:
            greedy.session(expected_tokens=64)
        assert refusal.value.fix == "close one"
        session = other.session(expected_tokens=64)
        assert session.prefill([1]).argmax().dtype == torch.int64
        half = keyed.engine("ids").segments.data.capacity // 2
        for each in (*sessions, session):
            each.close()
        with pytest.raises(ServerBusy, match="bytes"):
            greedy.session(expected_tokens=1, keep=half)
    keyed.wait_for(lambda: is_empty(keyed))


def test_sessions_of_a_client_that_went_end_with_their_lease(keyed: RunningServer) -> None:
    with keyed.remote(KEYS[0]) as remote:
        session = remote.session(expected_tokens=64)
        session.prefill([1, 2])
        threading.Event().wait(2.5)  # longer than the lease: a client that is there keeps its sessions
        session.decode(3)
    assert keyed.data_used("ids")
    keyed.wait_for(lambda: is_empty(keyed) and not len(keyed.service.sessions))
    with keyed.remote(KEYS[0]) as remote, pytest.raises(SessionUnknown):
        remote.attach(session.id)


def test_a_server_that_ends_is_one_clear_error(folder: Path) -> None:
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "drain_seconds": 0.2}
    with running(load_settings(options)) as server:
        remote = server.remote()
        client = remote.__enter__()
        session = client.session(expected_tokens=256)
        tokens = session.generate([1], 250, stop=())
        next(tokens)
        server.drain()
        with pytest.raises((ServerGone, ServerBusy)):
            list(tokens)
        server.thread.join(60)
        with pytest.raises(ServerGone):
            session.decode(1)
        with session:  # what its end would close is gone, and the block has done its work
            pass
        client.close()


def test_a_server_without_tensors_says_what_lets_clients_have_some(remote: RemoteServer) -> None:
    with pytest.raises(InvalidRequest, match="lets no client have tensors") as refusal:
        remote.open_device()
    assert refusal.value.fix == "have it serve with the setting tensor_bytes"


VISITOR = """
import random, sys
import tmmu

generator = random.Random(int(sys.argv[2]))
with tmmu.connect(sys.argv[1], key=sys.argv[3], deadline=60) as remote:
    ghost = remote.load("ids")
    print("ready", flush=True)
    while True:
        session = remote.session(ghost, expected_tokens=generator.choice([32, 64]), keep="1KiB")
        session.kept["logits"] = session.prefill([generator.randrange(256)])
        if generator.random() < 0.5:
            other = session.fork()
            list(other.generate(None, generator.randrange(1, 20), stop=()))
            other.close()
        ghost([1, 2, 3]).logits.argmax()
        session.close()
"""


@pytest.mark.parametrize("rounds", [pytest.param(3, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.long)])
def test_visitors_that_are_killed_at_any_time_leave_no_byte(keyed: RunningServer, rounds: int) -> None:
    generator = random.Random(0)
    for round_number in range(rounds):
        visitors = [
            subprocess.Popen(
                [sys.executable, "-c", VISITOR, str(keyed.service.address), str(10 * round_number + number), key],
                stdout=subprocess.PIPE,
            )
            for number, key in enumerate(KEYS)
        ]
        for visitor in visitors:
            assert visitor.stdout is not None
            assert visitor.stdout.readline() == b"ready\n"
        for visitor in visitors:
            threading.Event().wait(generator.uniform(0, 1))
            visitor.kill()
            visitor.communicate()
    keyed.wait_for(lambda: is_empty(keyed) and not len(keyed.service.sessions) and not keyed.service.door.running)
    assert keyed.engine("ids").sessions == ()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.prefill(None),
        lambda session: session.prefill("abc"),
        lambda session: session.prefill([2**70]),
        lambda session: session.prefill([[1], [2, 3]]),
        lambda session: session.prefill(5),
        lambda session: session.decode("x"),
        lambda session: next(session.generate([1], temperature="warm")),
        lambda session: next(session.generate([1], stop=5)),
        lambda session: next(session.generate([1], stop=["a"])),
        lambda session: next(session.generate([1], stop=[2**70])),
        lambda session: next(session.generate([1], seed=2**70)),
        lambda session: session.kept.__setitem__("a", "b"),
    ],
)
def test_arguments_of_other_types_are_one_line(server: RunningServer, use: Callable[[RemoteSession], object]) -> None:
    """Those that cannot be sent too, before anything is."""
    with server.remote() as remote, remote.session("text") as session, remote.trace() as trace:
        with pytest.raises(InvalidConfig):
            use(session)
        assert all(span.is_over for span in trace.requests)
        session.prefill([1])
        with pytest.raises(InvalidConfig):
            remote.session("text", expected_tokens=2**70)
        with pytest.raises(InvalidConfig):
            remote.session(5)  # type: ignore[arg-type]
