"""The next token of a row of logits: the best one, or one that is drawn, as transformers draws it."""

from dataclasses import dataclass
from typing import Final

import torch

from tmmu.errors import InvalidConfig

HOTTEST: Final = 1e300
"""A temperature: whole numbers beyond it are no floats any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Tokens that a model never chooses: ``always``, or ``first``, right behind a prompt."""

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()

    def mask(self, logits: torch.Tensor, *, is_first: bool) -> torch.Tensor:
        """``dtype[vocabulary]``: minus infinity for them; the argument itself where there are none."""
        tokens = self.always + (self.first if is_first else ())
        known = [token for token in tokens if 0 <= token < logits.shape[-1]]
        return logits.index_fill(-1, torch.tensor(known, device=logits.device), -torch.inf) if known else logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0: the best one. ``top_k`` 0 and ``top_p`` 1: among all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        fix = "temperature and top_k are at least 0, top_p is above 0, at most 1"
        kinds: dict[str, tuple[type, ...]] = {"temperature": (int, float), "top_k": (int,), "top_p": (int, float)}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise InvalidConfig(f"{name} is {value!r:.40}", fix=fix)
        if not 0 <= self.temperature <= HOTTEST:
            raise InvalidConfig(f"temperature is {self.temperature!r:.40}", fix=fix)
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise InvalidConfig(f"top_k is {self.top_k}, top_p {self.top_p}", fix=fix)

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """The token for ``dtype[vocabulary]``; ``generator`` advances where it is drawn, by one draw.

        ``INVALID_CONFIG`` where nothing can be drawn: the best score is no finite number at this temperature.
        """
        scores = logits.to(dtype=torch.float32)[None]
        if self.temperature == 0:
            return int(scores.argmax(dim=-1))
        scores = scores / self.temperature
        if not bool(scores.max().isfinite()):
            raise InvalidConfig(
                f"the best score is {float(scores.max())} at temperature {self.temperature}",
                fix="give a higher temperature, or 0 for the best token; or look for what made the logits infinite",
            )
        scores = self._mask_others(scores)
        return int(torch.multinomial(scores.softmax(dim=-1), num_samples=1, generator=generator))

    def _mask_others(self, scores: torch.Tensor) -> torch.Tensor:
        """Minus infinity for what is not among the best."""
        if self.top_k:
            least = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1, None]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p < 1:
            ascending, order = scores.sort(descending=False)
            dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.top_p
            dropped[..., -1:] = False
            scores = scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
        return scores
