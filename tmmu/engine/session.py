"""A session: a text under way, whose state lies in an arena of its own."""

from asyncio import to_thread, wrap_future
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tmmu.engine.arguments import is_whole, tokens_of
from tmmu.engine.geometry import StateLengths
from tmmu.engine.kept_values import KeptValues
from tmmu.engine.queue.terms import CLASSES, QueueTerms
from tmmu.engine.sampling import Sampling, Suppression
from tmmu.errors import InvalidConfig, SessionUnknown

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine
    from tmmu.engine.pause.paused_step import PausedStep


class Session:
    """Made by ``Engine.open``; whoever has ``capability`` has the session. ``length`` tokens are in its state.

    A context manager, which closes it. Nothing of its arena leaves the engine: logits are copies.
    """

    def __init__(  # noqa: PLR0913 - what a session is made of
        self,
        engine: "Engine",
        capability: str,
        *,
        arena: str,
        capacities: StateLengths,
        base: int,
        arena_bytes: int,
        terms: QueueTerms,
    ) -> None:
        self.engine, self.capability, self.arena = engine, capability, arena
        self.capacities, self.base, self.arena_bytes = capacities, base, arena_bytes
        self.terms = terms
        """On which its requests wait for steps."""
        self.length = 0
        self.source_length = 0
        """Positions of the source, which ``encode`` has read; 0 before, and of a model without an encoder."""
        self.kept = KeptValues(self)
        """Values that its client keeps in its arena, by name; room for them is made by ``Engine.open(keep=)``."""
        self.is_open = True
        self.is_broken = False
        """Whether a step failed half way, after which state that recurs is between two tokens."""
        self.paused: PausedStep | None = None
        """The step that waits behind a module, where there is one; then nothing else is asked of the session."""

    @property
    def capacity(self) -> int:
        """Tokens for which there is room."""
        return self.capacities.text

    @property
    def rank(self) -> int:
        """Of its class; 0 is the highest."""
        return CLASSES.index(self.terms.qos)

    @property
    def lengths(self) -> StateLengths:
        """Positions that are read, of which its state is a function."""
        return StateLengths(self.length, self.source_length, self.kept.used)

    @property
    def logits(self) -> torch.Tensor | None:
        """A copy, ``dtype[vocabulary]``, of those behind the last token; ``None`` before the first."""
        return self.engine.logits_of(self) if self.length else None

    def encode(self, source: Sequence[int] | torch.Tensor) -> None:
        """Has the encoder read a source: tokens, or features ``dtype[bins, frames]`` of speech. The text begins anew.

        What the decoder attends to across is computed here, once, and stays in the state. ``INVALID_CONFIG`` for a
        source of another kind, for one that does not fit, and where the model has no encoder.
        """
        self.engine.encode(self, source)

    async def encode_async(self, source: Sequence[int] | torch.Tensor) -> None:
        """``encode`` for asyncio."""
        await wrap_future(self.engine.submit_source(self, source))

    def prefill(self, ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind the last of these tokens, which follow what is there.

        ``INVALID_CONFIG`` for no tokens, for one that is none of the model's, and for more than there is room for.
        """
        return self.engine.prefill(self, tokens_of(ids))

    def decode(self, token: int) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind one more token."""
        return self.engine.decode([self], [token])[0]

    def run_until(self, module: str, ids: Sequence[int] | torch.Tensor | int) -> "PausedStep":
        """Reads a prompt, or decodes one token, up to the end of a module of the model, such as ``model.layers.15``.

        Of a prompt that takes several steps the last one pauses. Other sessions run until it is resumed.
        ``INVALID_CONFIG`` as of ``prefill``, and where a step does not have one end of such a module.
        """
        is_token = is_whole(ids)
        tokens = [ids] if isinstance(ids, int) and is_token else tokens_of(ids)  # type: ignore[arg-type]
        return self.engine.run_until(self, module, tokens, is_token=is_token)

    def generate(  # noqa: PLR0913 - the settings that people know by these names
        self,
        ids: Sequence[int] | torch.Tensor | None = None,
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
    ) -> Iterator[int]:
        """Yields up to ``max_new_tokens`` tokens; a token of ``stop``, by default the model's own, is the last.

        ``ids``: a prompt that follows what is there; without it the text goes on behind the last token in the state, or
        begins with the start token of an encoder-decoder.
        Tokens that the model's own settings suppress are not chosen. What is drawn depends on ``seed`` alone, whoever
        else runs: as after ``torch.manual_seed(seed)``. The last token that is yielded is not in the state. The prompt
        is read when the first token is taken.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        return self._tokens(ids, self.generation(max_new_tokens, sampling, seed, stop))

    async def generate_async(  # noqa: PLR0913 - those of generate
        self,
        ids: Sequence[int] | torch.Tensor | None = None,
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
    ) -> AsyncIterator[int]:
        """``generate`` for asyncio: steps run in a thread of the engine's own."""
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        run = self.generation(max_new_tokens, sampling, seed, stop)
        prompt = self._prompt(ids)
        run.is_first = prompt is not None
        logits = await to_thread(self._last_logits) if prompt is None else await self._read_elsewhere(prompt)
        while run.goes_on:
            token = run.choose(logits)
            yield token
            if run.goes_on:
                logits = await self._read_elsewhere([token])

    def wait(self, expected: float | None = None, *, kind: str = "") -> None:
        """Says that nothing will be asked for now: for ``expected`` seconds, and for what (``tool``, ``person`` …).

        Its bytes may be copied at once, and leave when a policy has others come; they come back by what is said here.
        ``INVALID_CONFIG`` while it waits for a step.
        """
        self.engine.begin_wait(self, expected, kind)

    def resume_soon(self, within: float = 0.0) -> None:
        """Says that a waiting session will go on within so many seconds."""
        self.engine.expect(self, within)

    @property
    def is_resident(self) -> bool:
        """Whether its state is whole on the device, and it has its arena."""
        return self.engine.is_resident(self)

    def heartbeat(self) -> None:
        """Renews the lease, where there is one."""
        self.engine.heartbeat(self)

    def fork(self) -> "Session":
        """A session of the same capacity that has read the same tokens; each goes on by itself."""
        return self.engine.fork(self)

    def close(self) -> None:
        """Gives back the arena, with nothing left in it. Closing again does nothing."""
        self.engine.close_session(self)

    def require_open(self) -> None:
        """``SESSION_UNKNOWN`` once it is closed."""
        if not self.is_open:
            raise SessionUnknown("the session is closed", fix="open another one")

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"{self.length} of {self.capacity} tokens" if self.is_open else "closed"
        return f"<Session: {state}, {self.arena_bytes} bytes>"

    def generation(self, count: int, sampling: Sampling, seed: int | None, stop: Sequence[int] | None) -> "Generation":
        """What chooses up to ``count`` tokens from logits, for those who have steps run by themselves."""
        if not is_whole(count) or count < 0:
            raise InvalidConfig(f"max_new_tokens is {count!r:.40}", fix="give 0 or more")
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        elif is_whole(seed) and 0 <= seed < 1 << 64:
            generator.manual_seed(seed)
        else:
            raise InvalidConfig(f"seed is {seed!r:.40}", fix="give a whole number of 64 bits, or None")
        ends = frozenset(self.engine.stop if stop is None else tokens_of(stop))
        return Generation(
            sampling=sampling, suppression=self.engine.suppression, generator=generator, remaining=count, ends=ends
        )

    def _tokens(self, ids: Sequence[int] | torch.Tensor | None, run: "Generation") -> Iterator[int]:
        prompt = self._prompt(ids)
        run.is_first = prompt is not None
        logits = self._last_logits() if prompt is None else self.prefill(prompt)
        while run.goes_on:
            token = run.choose(logits)
            yield token
            if run.goes_on:
                logits = self.decode(token)

    def _prompt(self, ids: Sequence[int] | torch.Tensor | None) -> list[int] | None:
        """What is read before the first token is chosen; ``None`` where the text goes on."""
        if ids is not None:
            return tokens_of(ids)
        if self.length or not self.engine.geometry.has_source:
            return None
        if not self.engine.start:
            raise InvalidConfig("the model names no decoder_start_token_id", fix="give ids that begin with it")
        return list(self.engine.start)

    def _last_logits(self) -> torch.Tensor:
        logits = self.logits
        if logits is None:
            raise InvalidConfig("the session has read no tokens", fix="give it a prompt")
        return logits

    async def _read_elsewhere(self, tokens: list[int]) -> torch.Tensor:
        return await wrap_future(self.engine.submit(self, tokens))


@dataclass(slots=True, kw_only=True)
class Generation:
    """Which tokens follow, until ``remaining`` is 0."""

    sampling: Sampling
    suppression: Suppression
    generator: torch.Generator
    remaining: int
    ends: frozenset[int]
    is_first: bool = False
    """Whether the next token is the first behind a prompt."""

    @property
    def goes_on(self) -> bool:
        """Whether another token follows."""
        return self.remaining > 0

    def choose(self, logits: torch.Tensor) -> int:
        """The next token; the last one, if it ends a text."""
        token = self.sampling.choose(self.suppression.mask(logits, is_first=self.is_first), self.generator)
        self.is_first = False
        self.remaining = 0 if token in self.ends else self.remaining - 1
        return token
