"""A model that is served: its engine, the loop that drives it, its tokenizer and chat template."""

from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Final

from tmmu.errors import DeviceMemory, InvalidConfig, PromptTooLong
from tmmu.server.pressure.watch import PressureWatch
from tmmu.server.settings import ServerSettings
from tmmu.server.texts.chat_template import ChatTemplate, read_chat_template
from tmmu.server.texts.generation_loop import GenerationLoop, LoopObserver

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine
    from tmmu.engine.text import Text

_WARM_UP: Final = 2
"""Tokens of the text that shows that a model runs: the prompt's own step, and one that decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model by its name. ``longest``: tokens of the longest session, prompt and answer together.

    ``watch``: of the room of its sessions. ``text``: ``None`` where the folder has no tokenizer, ``template`` where it
    has none for chats. ``created``: seconds of the epoch.
    """

    name: str
    engine: "Engine"
    loop: GenerationLoop
    watch: PressureWatch
    text: "Text | None"
    template: ChatTemplate | None
    encodes: bool
    longest: int
    created: int

    def room_behind(self, prompt: int) -> int:
        """Tokens that may follow a prompt of so many; ``PROMPT_TOO_LONG`` where there is no room for one."""
        engine = self.engine
        if self.encodes:
            if prompt > engine.limits.max_source:
                raise self._too_long(prompt, 0, engine.limits.max_source)
            return self.longest - len(engine.start)
        if prompt >= self.longest:
            raise self._too_long(prompt, 1, self.longest)
        return self.longest - prompt

    def require_room(self, prompt: int, new_tokens: int) -> None:
        """``PROMPT_TOO_LONG`` where a prompt and so many tokens behind it do not fit in the longest session."""
        if new_tokens > self.room_behind(prompt):
            raise self._too_long(prompt, new_tokens, self.longest)

    def _too_long(self, prompt: int, new_tokens: int, limit: int) -> PromptTooLong:
        return PromptTooLong(
            f"the prompt has {prompt} tokens, and {new_tokens} are to follow: {self.name} has room for {limit}",
            fix="send a shorter prompt, or a smaller max_tokens",
            prompt=prompt,
            tokens=new_tokens,
            longest=limit,
        )

    def close(self) -> None:
        """Ends what is under way, and gives the memory back."""
        self.loop.close()
        self.engine.close()


def load_model(
    name: str, folder: Path, settings: ServerSettings, *, budget: int | None, observer: LoopObserver
) -> ServedModel:
    """The model of a folder, which has generated a text of two tokens. ``budget``: bytes of all that it takes."""
    from tmmu.engine.checkpoint import has_encoder, random_model  # noqa: PLC0415 - torch comes with the engine
    from tmmu.engine.engine import Engine  # noqa: PLC0415
    from tmmu.engine.queue.fair_queue import FairQueue  # noqa: PLC0415
    from tmmu.engine.text import TOKENIZER_FILE, Text  # noqa: PLC0415

    text = Text(folder) if (folder / TOKENIZER_FILE).is_file() else None
    template, encodes = read_chat_template(folder), has_encoder(folder)
    model: Any = folder if settings.random_weights is None else random_model(folder, settings.random_weights)
    engine = Engine(
        model,
        device=settings.device,
        budget=budget,
        max_tokens=settings.max_tokens,
        max_sessions=settings.max_sessions,
        max_batch=settings.max_batch,
        policy="hold",  # whoever finds no room waits for it
        headroom=settings.headroom,
        queue=FairQueue(shares=settings.class_shares, escalation=settings.escalation_seconds or None),
        stacks=settings.concurrency,
        reserve=0 if budget is not None else settings.os_reserve + settings.safety_margin,
    )
    try:
        longest = longest_session(engine)
        _warm_up(engine, encodes=encodes)
    except BaseException:
        engine.close()
        raise
    watch = PressureWatch(
        name,
        engine,
        acts=settings.pressure == "act",
        adapts=settings.adaptive_headroom,
        headroom=settings.headroom,
    )
    loop = GenerationLoop(engine, name=name, text=text, encodes=encodes, observer=observer, watch=watch)
    return ServedModel(
        name=name,
        engine=engine,
        loop=loop,
        watch=watch,
        text=text,
        template=template if text is not None else None,
        encodes=encodes,
        longest=longest,
        created=int(time()),
    )


def longest_session(engine: "Engine") -> int:
    """Tokens of the longest session that has room in the engine, and in its state segment when nobody else is there."""
    geometry, limits = engine.geometry, engine.limits
    capacity = engine.segments.data.capacity

    def fits(tokens: int) -> bool:
        return geometry.arena_bytes(geometry.capacities_for(tokens, limits.max_source)) <= capacity

    low, high = 0, limits.max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if not low:
        raise DeviceMemory("there is no room for a session of one token", fix="give a larger budget")
    return low


def require_folder(folder: Path) -> None:
    """``INVALID_CONFIG`` for what is no folder with a configuration."""
    if not (folder / "config.json").is_file():
        raise InvalidConfig(f"no config.json at {str(folder)!r}", fix="give a folder with config.json and safetensors")


def weight_bytes(folder: Path) -> int:
    """Bytes of the files with weights that a folder has."""
    return sum(path.stat().st_size for path in sorted(folder.glob("*.safetensors")))


def _warm_up(engine: "Engine", *, encodes: bool) -> None:
    """Generates a text, so that the first request waits for no step to be planned, and a model that fails does now."""
    with engine.open(min(_WARM_UP + 1, engine.limits.max_tokens), source=1 if encodes else None) as session:
        if encodes:
            session.encode([0])
        list(session.generate(None if encodes else [0], min(_WARM_UP, engine.limits.max_tokens - 1), stop=()))
