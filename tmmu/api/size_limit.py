"""What a search for the largest size stays below, and with what."""

from dataclasses import dataclass

from tmmu.api.arguments import bytes_of
from tmmu.errors import BudgetTooSmall, InvalidConfig
from tmmu.planner.arenas import readable_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimit:
    """Bytes of a device, and those of them that are kept free; ``fit``: with the levers of fit, ``near`` ones too."""

    size: int
    reserve: int
    fit: bool = False
    near: bool = False

    @classmethod
    def of(cls, size: object, reserve: object, *, fit: object = False, near: object = False) -> "SizeLimit":
        """What a caller gave; ``INVALID_CONFIG`` for what makes no sense, ``BUDGET_TOO_SMALL`` for no room at all."""
        for name, value in (("fit", fit), ("near", near)):
            if not isinstance(value, bool):
                raise InvalidConfig(f"{name}={value!r:.80} is neither True nor False", fix="write one of the two")
        if near and not fit:
            raise InvalidConfig("near=True without fit=True has no effect", fix="add fit=True, or leave near out")
        budget, kept = bytes_of(size), bytes_of(reserve)
        if budget < kept:
            raise BudgetTooSmall(
                f"the reserve of {readable_size(kept)} is more than {readable_size(budget)}",
                fix="give a smaller reserve",
            )
        return cls(size=budget, reserve=kept, fit=bool(fit), near=bool(near))
