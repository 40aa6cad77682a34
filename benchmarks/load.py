"""A server under the load of the sources: 14 clients of three classes and three kinds of requests, minutes long.

    python -m benchmarks.load [--seconds 120] [--rounds 6] [--width 128] [--layers 4]

``tmmu serve`` runs as a process of its own, with a model of random weights and a key for each client. Each client sends
its next request when the one before is answered and it has thought for a while:

- ``decode``: 24 tokens, and as many more: a turn of a chat; of realtime 8 tokens behind 16;
- ``classify``: one token behind 50;
- ``embed``: one token behind 200, as many as an image of ViT-B/16 has patches.

The door answers with texts alone, so classifying and embedding are prompts of that length. Four realtime clients
decode, six interactive ones decode or classify, four of batch embed. Rounds with batch and without it alternate; times
are those that a client sees, from sending to the last byte. Then a greedy client of class interactive sends 16 requests
at a time, beside the six others, in rounds that alternate with such without it. Last, a second server that runs two
steps at once (``concurrency = 2``) has the same load as the first one, in rounds that alternate.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

VOCABULARY: Final = 5000
POSITIONS: Final = 512
WARM_SECONDS: Final = 60.0
STACKS: Final = (1, 2)
QUIET_ROUNDS: Final = 2
GREED: Final = 16
PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who sends what: ``prompt`` and ``answer`` tokens, ``streams`` requests at a time, ``thinks`` seconds between."""

    name: str
    qos: str
    kind: str
    prompt: int
    answer: int
    thinks: float
    streams: int = 1


def clients_of() -> list[Client]:
    """The 14 clients."""
    decode, classify = {"prompt": 24, "answer": 24}, {"prompt": 50, "answer": 1}
    return [
        *(
            Client(name=f"realtime {n}", qos="realtime", kind="decode", prompt=16, answer=8, thinks=0.3)
            for n in range(4)
        ),
        *(Client(name=f"decode {n}", qos="interactive", kind="decode", thinks=0.5, **decode) for n in range(3)),
        *(Client(name=f"classify {n}", qos="interactive", kind="classify", thinks=0.3, **classify) for n in range(3)),
        *(Client(name=f"embed {n}", qos="batch", kind="embed", prompt=200, answer=1, thinks=0.05) for n in range(4)),
    ]


GREEDY: Final = Client(name="greedy", qos="interactive", kind="decode", prompt=24, answer=24, thinks=0.0, streams=GREED)


@dataclass(slots=True)
class Answers:
    """What came back in the rounds of one condition. ``seconds``: of each request, by (class, kind) and by client."""

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    by_client: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    wall: float = 0.0

    def of_class(self, qos: str) -> list[float]:
        return [each for (name, _), seconds in self.seconds.items() if name == qos for each in seconds]


def quantile(seconds: Sequence[float], part: float) -> float:
    """In ms; of so few that the part is none of them the next larger one."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


@contextmanager
def serving(folder: Path, keys: Path, name: str, options: Sequence[str]) -> Iterator[str]:
    """The address of a server that runs beside; ``name`` is of its files."""
    settings, log_path = folder.parent / f"{name}.toml", folder.parent / f"{name}.log"
    settings.write_text("max_batch = 8\nminimum = 0\nos_reserve = 0\nsafety_margin = 0\n" + "\n".join(options))
    command = [
        sys.executable,
        "-c",
        "from tmmu.cli.main import main; main()",
        "serve",
        "--model",
        f"tiny={folder}",
        "--keys",
        str(keys),
    ]
    command += ["--listen", "127.0.0.1:0", "--random-weights", "0", "--max-sessions", "16", "--json"]
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, "--settings", str(settings)], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(log_path.read_text()[-2000:])
            text = line
            while text.count("{") != text.count("}"):
                text += process.stdout.readline()
            yield json.loads(text)["address"]
        finally:
            process.terminate()
            process.communicate(timeout=60)


class Load:
    """Sends the requests of clients to one server."""

    def __init__(self, address: str, keys: Mapping[str, str]) -> None:
        self._address, self._keys = address, keys

    async def round(self, clients: Sequence[Client], seconds: float, answers: Answers) -> None:
        """All clients for so long; those that are under way at the end are waited for."""
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        begin = time.perf_counter()
        async with httpx.AsyncClient(base_url=self._address, timeout=PATIENCE, limits=limits) as http:
            end = begin + seconds
            await asyncio.gather(
                *(
                    self._send(http, client, number, end, answers)
                    for client in clients
                    for number in range(client.streams)
                )
            )
        answers.wall += time.perf_counter() - begin

    async def _send(self, http: httpx.AsyncClient, client: Client, number: int, end: float, answers: Answers) -> None:
        headers = {"authorization": f"Bearer {self._keys[client.name]}", "x-tmmu-class": client.qos}
        sent = 0
        while time.perf_counter() < end:
            prompt = [(sent * 31 + number * 17 + position * 7) % VOCABULARY for position in range(client.prompt)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": client.answer, "temperature": 0}
            begin = time.perf_counter()
            answer = await http.post("/v1/completions", json=body, headers=headers)
            taken = time.perf_counter() - begin
            sent += 1
            if answer.status_code == 200:
                answers.seconds[client.qos, client.kind].append(taken)
                answers.by_client[client.name].append(taken)
            else:
                answers.failures.append(f"{client.name}: {answer.status_code} {answer.text[:200]}")
            await asyncio.sleep(client.thinks)

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric's samples that have a label."""
        headers = {"authorization": f"Bearer {next(iter(self._keys.values()))}"}
        text = httpx.get(f"{self._address}/metrics", headers=headers, timeout=PATIENCE).text
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f"{name}{{") and label in line
        )

    def warm_up(self, clients: Sequence[Client]) -> float:
        """Runs everybody until no shape is bound any more; how many are."""
        begin, quiet, planned = time.perf_counter(), 0, 0.0
        crowd = [
            Client(**{name: getattr(each, name) for name in Client.__slots__} | {"thinks": 0.0}) for each in clients
        ]
        while quiet < QUIET_ROUNDS and time.perf_counter() - begin < 4 * WARM_SECONDS:
            for each in (*([client] for client in crowd[::4]), crowd):
                asyncio.run(self.round(each, 1.0, Answers()))
            shapes = self.metric("tmmu_step_plan_misses_total")
            quiet, planned = (quiet + 1 if shapes == planned else 0), shapes
        return planned


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds; what is printed, as numbers."""
    clients = clients_of()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        keys = {client.name: f"key-of-client-{index:04d}" for index, client in enumerate((*clients, GREEDY))}
        (root / "keys").write_text("\n".join(keys.values()) + "\n")
        folder = root / "model"
        folder.mkdir()
        config = {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": arguments.width, "n_head": 4,
            "n_layer": arguments.layers, "vocab_size": VOCABULARY, "n_positions": POSITIONS, "eos_token_id": None,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        with ExitStack() as servers:
            options = {f"{count} at once": [f"concurrency = {count}"] for count in STACKS}
            addresses = {
                name: servers.enter_context(serving(folder, root / "keys", f"serve-{number}", lines))
                for number, (name, lines) in enumerate(options.items())
            }
            loads = {name: Load(address, keys) for name, address in addresses.items()}
            begin = time.perf_counter()
            shapes = {name: load.warm_up([*clients, GREEDY]) for name, load in loads.items()}
            warm = time.perf_counter() - begin
            load = next(iter(loads.values()))
            conditions = measure(load, clients, arguments) | compare(loads, clients, arguments)
            later = sum(each.metric("tmmu_step_plan_misses_total") - shapes[name] for name, each in loads.items())
            escalated, yields = (load.metric(f"tmmu_{name}_total") for name in ("escalated_steps", "yields"))
            stack_bytes = {
                name: each.metric("tmmu_segment_capacity_bytes", 'segment="stack"') for name, each in loads.items()
            }
    return {
        "conditions": conditions,
        "shapes": next(iter(shapes.values())),
        "warm": warm,
        "later": later,
        "escalated": escalated,
        "yields": yields,
        "stack bytes": stack_bytes,
    }


def compare(loads: Mapping[str, Load], clients: Sequence[Client], arguments: argparse.Namespace) -> dict[str, Answers]:
    """The same load on each server, in rounds that alternate."""
    answers = {name: Answers() for name in loads}
    names = list(loads)
    for number in range(arguments.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            asyncio.run(loads[name].round(clients, arguments.seconds / (2 * arguments.rounds), answers[name]))
    return answers


def measure(load: Load, clients: Sequence[Client], arguments: argparse.Namespace) -> dict[str, Answers]:
    """Rounds by condition, which alternate."""
    without = [client for client in clients if client.qos != "batch"]
    fair = [client for client in clients if client.qos == "interactive"]
    groups = {"all": clients, "without batch": without, "fair": fair, "greedy": [*fair, GREEDY]}
    answers = {name: Answers() for name in groups}
    seconds = arguments.seconds / (2 * arguments.rounds)
    for pair in (("all", "without batch"), ("fair", "greedy")):
        for number in range(arguments.rounds):
            for name in pair if number % 2 == 0 else pair[::-1]:
                asyncio.run(load.round(groups[name], seconds, answers[name]))
    return answers


def report(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the report."""
    conditions: Mapping[str, Answers] = result["conditions"]
    yield f"warm-up: {result['shapes']:.0f} shapes planned in {result['warm']:.0f} s, {result['later']:.0f} after it"
    failures = [failure for answers in conditions.values() for failure in answers.failures]
    yield f"failed requests: {len(failures)}" + "".join(f"\n  {failure}" for failure in failures[:5])
    yield f"steps out of turn: {result['escalated']:.0f}, yields: {result['yields']:.0f}"
    yield "\n| class | kind | condition | requests | requests/s | p50 ms | p99 ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in ("all", "without batch"):
        answers = conditions[name]
        for (qos, kind), seconds in answers.seconds.items():
            rate, low, high = len(seconds) / answers.wall, quantile(seconds, 0.5), quantile(seconds, 0.99)
            yield f"| {qos} | {kind} | {name} | {len(seconds)} | {rate:.1f} | {low:.1f} | {high:.1f} |"
    yield from report_stacks(conditions, result["stack bytes"])
    high, low = (quantile(conditions[name].of_class("realtime"), 0.99) for name in ("all", "without batch"))
    yield f"\nrealtime's p99 with batch over that without: {high / low:.2f}" if low else ""
    yield "\n| client | requests/s without greedy | with | p50 ms without | with |"
    yield "| --- | --- | --- | --- | --- |"
    fair, greedy = conditions["fair"], conditions["greedy"]
    for client in greedy.by_client:
        rates = [len(each.by_client.get(client, ())) / each.wall for each in (fair, greedy)]
        times = [quantile(each.by_client.get(client, ()), 0.5) for each in (fair, greedy)]
        yield f"| {client} | {rates[0]:.1f} | {rates[1]:.1f} | {times[0]:.1f} | {times[1]:.1f} |"


def report_stacks(conditions: Mapping[str, Answers], stack_bytes: Mapping[str, float]) -> Iterator[str]:
    """A table of the servers that run one step, or several, at once."""
    names = list(stack_bytes)
    yield "\nstacks: " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in stack_bytes.items())
    yield "\n| class | " + " | ".join(f"{name}: requests/s | p50 ms | p99 ms" for name in names) + " |"
    yield "| --- |" + " --- | --- | --- |" * len(names)
    for qos in ("realtime", "interactive", "batch"):
        cells = []
        for name in names:
            seconds = conditions[name].of_class(qos)
            rate, low, high = len(seconds) / conditions[name].wall, quantile(seconds, 0.5), quantile(seconds, 0.99)
            cells.append(f"{rate:.1f} | {low:.1f} | {high:.1f}")
        yield f"| {qos} | " + " | ".join(cells) + " |"
    rates = [sum(map(len, conditions[name].by_client.values())) / conditions[name].wall for name in names]
    yield f"requests/s of all, {names[-1]} over {names[0]}: {rates[-1] / rates[0]:.2f}"


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each pair of conditions")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    for line in report(run(parser.parse_args())):
        print(line)


if __name__ == "__main__":
    main()
