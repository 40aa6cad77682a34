"""A server from its settings to its end: it binds, loads, serves, drains, and gives everything back.

The door is open while models are loaded, so that ``/health`` and ``/ready`` answer. SIGTERM and SIGINT end it: no
connection is taken any more, requests that are under way have ``drain_seconds``, then their sessions are closed.
"""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import uvicorn

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.collection import keep_what_is_there
from tmmu.server.address import ListenAddress, bind_socket, bind_unix_socket, parse_listen
from tmmu.server.budget import require_minimum, share_budget
from tmmu.server.doctor import examine_machine
from tmmu.server.engine_figures import EngineFigure, EngineFigures, read_figures
from tmmu.server.http.app import DoorContext, build_app
from tmmu.server.http.protocol import GuardedProtocol
from tmmu.server.http.tls_gate import TlsGate
from tmmu.server.hub import fetch_model, hub_reference, require_fetch
from tmmu.server.keys import KeyRing, read_keys
from tmmu.server.logs import log_event, set_up_logs
from tmmu.server.metrics import ServerMetrics
from tmmu.server.model_table import ModelTable
from tmmu.server.served_model import ServedModel, load_model, require_folder, weight_bytes
from tmmu.server.settings import ServerSettings
from tmmu.server.tls import server_context
from tmmu.server.wire.local_protocol import LocalProtocol
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.services import wire_services
from tmmu.server.wire.session_table import SessionTable
from tmmu.server.wire.wire_door import WireDoor
from tmmu.server.wire.wire_figures import read_wire_figures
from tmmu.wire.frames import PREAMBLE

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Service:
    """One server. Made, it has its port; ``run`` loads the models and serves until it is told to end.

    ``INVALID_CONFIG`` for settings that make no sense, ``PORT_TAKEN`` where somebody else listens.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self._begin = settings, perf_counter()
        address = parse_listen(settings.listen)
        self._keys = _keys_for(settings, address)
        self._tls = server_context(settings.tls_cert, settings.tls_key)
        for folder in settings.models.values():
            reference = hub_reference(folder)
            if reference is None:
                require_folder(folder)
            else:
                require_fetch(reference, may_fetch=settings.fetch)
        if not settings.models:
            raise InvalidConfig("there is no model to serve", fix="give --model NAME=FOLDER")
        self._loaded: list[ServedModel] = []
        self.metrics = ServerMetrics(self._figures, self._wire_figures)
        names, most = tuple(settings.models), settings.max_requests
        self.models = ModelTable(self.metrics, names=names, most=most, headroom=settings.headroom)
        self.sessions = SessionTable(settings, has_keys=self._keys is not None)
        services = wire_services(self.models, self.sessions, settings, self._keys)
        self._graphs = services.graphs
        self.door = WireDoor(
            services.all,
            settings,
            self._keys,
            on_second=self.sessions.sweep,
            on_end=self.metrics.note_wire_stages,
        )
        self._failure: BaseException | None = None
        self._socket = bind_socket(address)
        self.address = ListenAddress(address.host, self._socket.getsockname()[1])
        path = settings.unix_socket
        self._unix_socket = None if path is None else bind_unix_socket(path)

    def run(self, on_ready: Callable[["Service"], object] = lambda _: None) -> None:
        """Serves; ``on_ready`` is called once models answer. Raises what loading them failed of."""
        set_up_logs(self.settings.log_level)
        try:
            asyncio.run(self._serve(on_ready))
        finally:
            self._socket.close()
            if self._unix_socket is not None and self.settings.unix_socket is not None:
                self._unix_socket.close()
                self.settings.unix_socket.unlink(missing_ok=True)
        if self._failure is not None:
            raise self._failure

    async def _serve(self, on_ready: Callable[["Service"], object]) -> None:
        server = _Server(self._config(), self._begin_drain)
        self.door.start()
        local = await self._listen_locally(server)
        loading = asyncio.create_task(self._load(server, on_ready))
        try:
            await server.serve(sockets=[self._socket])
        finally:
            if local is not None:
                local.close()
            self.door.stop()
            await loading
            await asyncio.to_thread(self._close)
        if self._failure is None:
            log_event("ended")

    def _config(self) -> uvicorn.Config:
        context = DoorContext(models=self.models, metrics=self.metrics, settings=self.settings, keys=self._keys)
        attributes = {
            "header_seconds": self.settings.receive_seconds,
            "most_connections": self.settings.connections,
            "other_beginning": PREAMBLE[:1],
            "hand_over": staticmethod(self._hand_over),
        }
        protocol = type("Protocol", (GuardedProtocol,), attributes)
        return uvicorn.Config(
            build_app(context),
            http=self._behind_tls(protocol),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self.settings.idle_seconds,  # type: ignore[arg-type] # parts of seconds work too
            timeout_graceful_shutdown=self.settings.drain_seconds,  # type: ignore[arg-type]
            h11_max_incomplete_event_size=self.settings.header_bytes,
        )

    async def _listen_locally(self, server: uvicorn.Server) -> asyncio.Server | None:
        """The wire at the Unix socket, without TLS: nobody but this user reaches it."""
        if self._unix_socket is None:
            return None
        connections, most = server.server_state.connections, self.settings.connections
        return await asyncio.get_running_loop().create_unix_server(
            lambda: LocalProtocol(self.door, connections, most), sock=self._unix_socket
        )

    def _behind_tls(self, protocol: type[GuardedProtocol]) -> Any:
        """What uvicorn makes for each connection: ``protocol``, or what lets one through to it after a handshake."""
        context, settings = self._tls, self.settings
        if context is None:
            return protocol
        return lambda server_state, **named: TlsGate(
            partial(protocol, server_state=server_state, **named),
            context,
            server_state.connections,
            most=settings.connections,
            seconds=settings.receive_seconds,
        )

    @property
    def url(self) -> str:
        """Where the server is found."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    def _hand_over(self, protocol: GuardedProtocol, data: bytes) -> None:
        ServerConnection(self.door, protocol.transport, protocol.connections).begin(data)

    async def _load(self, server: uvicorn.Server, on_ready: Callable[["Service"], object]) -> None:
        """Loads the models beside the open door; where one fails, the server ends."""
        try:
            await asyncio.to_thread(self._load_models)
        except Exception as error:  # noqa: BLE001 - raised by run
            self._failure = error
            server.should_exit = True
            return
        if not self.models.is_draining:
            self.models.set_models(self._loaded)
            keep_what_is_there()  # collections between requests look at what those leave behind
            gc.enable()
            log_event("ready", address=str(self.address), seconds=round(perf_counter() - self._begin, 3))
            on_ready(self)

    def _load_models(self) -> None:
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - seconds to import

        disable_progress_bar()  # type: ignore[no-untyped-call] # each line of the log is JSON
        for finding in examine_machine(self.settings.device):
            if finding.status == "warn":
                log_event("doctor", level=logging.WARNING, name=finding.name, state=finding.state, fix=finding.fix)
        require_minimum(self.settings)
        folders = {name: self._folder_of(name, path) for name, path in self.settings.models.items()}
        budgets = share_budget(self.settings.budget, [weight_bytes(folder) for folder in folders.values()])
        for (name, folder), budget in zip(folders.items(), budgets, strict=True):
            if self.models.is_draining:
                return
            begin = perf_counter()
            observer = self.metrics.of_model(name)
            model = load_model(name, folder, self.settings, budget=budget, observer=observer)
            self._loaded.append(model)
            self._tell_stacks(model)
            sizes: dict[str, Any] = {
                f"{segment}_bytes": usage.capacity for segment, usage in model.engine.usage.items()
            }
            seconds = round(perf_counter() - begin, 3)
            log_event("loaded", model=name, seconds=seconds, longest=model.longest, **sizes)

    def _folder_of(self, name: str, path: Path) -> Path:
        """The folder of a model, which is fetched first if it lies at the hub."""
        reference = hub_reference(path)
        if reference is None:
            return path
        begin = perf_counter()
        folder = fetch_model(reference)
        log_event("fetched", model=name, source=str(reference), seconds=round(perf_counter() - begin, 3))
        require_folder(folder)
        return folder

    def _tell_stacks(self, model: ServedModel) -> None:
        """A line where there is no room for as many steps at once as the settings ask for."""
        engine, most = model.engine, self.settings.concurrency
        if engine.stacks < most:
            size = engine.usage["stack"].capacity // engine.stacks
            fix = "give a larger --budget, or a smaller --concurrency"
            log_event(
                "concurrency", level=logging.WARNING, model=model.name, steps=engine.stacks, asked=most,
                stack_bytes=size, fix=fix,
            )  # fmt: skip

    def _begin_drain(self) -> None:
        self.models.is_draining = self.door.is_draining = True
        log_event("draining", texts=self.models.texts)

    def _figures(self) -> list[EngineFigures]:
        return [read_figures(model.name, model.engine, model.watch) for model in self.models.models]

    def _wire_figures(self) -> list[EngineFigure]:
        return list(read_wire_figures(self.door, self.sessions, self._graphs))

    def _close(self) -> None:
        self.door.close()
        for model in self._loaded:
            model.close()


class _Server(uvicorn.Server):
    """Ends by a signal with what it has to say, and not by the signal itself."""

    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_drain = on_drain

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Block in which SIGTERM and SIGINT end the server; at the second one requests are not waited for."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals go to the main thread alone
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - the names are uvicorn's
        """A signal came."""
        self.force_exit = self.should_exit
        if not self.should_exit:
            self._on_drain()
        self.should_exit = True


def _keys_for(settings: ServerSettings, address: ListenAddress) -> KeyRing | None:
    """The keys of the settings; without any, ``INVALID_CONFIG`` for an address that others reach."""
    if settings.keys is not None:
        return read_keys(settings.keys)
    if not address.is_loopback:
        raise InvalidConfig(
            f"{address} is reached by other machines, and there are no keys",
            fix="give --keys FILE, or listen at 127.0.0.1",
        )
    return None
