"""Options of ranks to what is captured of them: how many there are, which one is planned, how a model is cut."""

from dataclasses import dataclass, replace
from typing import Final

from tmmu.cli.options import CaptureOptions, RankOptions
from tmmu.cli.parsing import DEFAULT_MODE, refuse, require_count
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.ranks.schedules import DEFAULT_SCHEDULE, parse_schedule
from tmmu.rank_plans import FULLEST, rank_number, require_world

_RANK_DIGITS: Final = 20
"""No rank has so many; Python refuses to read numbers of thousands."""
_STAGED_LOSSES: Final = (None, "cross_entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """The fields of a ``CaptureRequest`` about ranks: ``rank`` is ``None`` for the fullest, ``world`` without ranks."""

    world: int | None
    rank: int | None
    tp: int = 1
    fsdp: int = 1
    ep: int = 1
    pp: int = 1
    schedule: str = DEFAULT_SCHEDULE
    microbatches: int | None = None


def parse_ranks(options: RankOptions, capture: CaptureOptions) -> RankSettings:
    """What the options say, checked; ``capture`` says what a pipeline would have to do."""
    tp, fsdp = require_count(options.tp, "--tp"), require_count(options.fsdp, "--fsdp")
    pp, ep = require_count(options.pp, "--pp") or 1, require_count(options.ep, "--ep") or 1
    is_cut = bool(tp or fsdp or options.pp)
    world = (tp or 1) * (fsdp or 1) * pp if is_cut else options.world
    _require_expert_ranks(ep, tp or 1, fsdp or 1)
    schedule = parse_schedule(options.schedule or DEFAULT_SCHEDULE)
    microbatches = require_count(options.microbatches, "--microbatches")
    if pp == 1:
        pipeline = {"--schedule": options.schedule, "--microbatches": options.microbatches}
        refuse(pipeline, "only with --pp of 2 or more", fix="say how many stages there are")
    else:
        require_staged(capture)
    cut = RankSettings(
        world=None, rank=None, tp=tp or 1, fsdp=fsdp or 1, ep=ep, pp=pp, schedule=str(schedule),
        microbatches=microbatches,
    )  # fmt: skip
    if world is None:
        refuse({"--rank": options.rank}, "only with --world, --tp, --fsdp or --pp", fix="say how many ranks there are")
        return cut
    text = FULLEST if options.rank is None else options.rank
    is_number = text.isascii() and text.isdecimal() and len(text) <= _RANK_DIGITS
    return replace(cut, world=require_world(world), rank=rank_number(int(text) if is_number else text, world))


def require_staged(capture: CaptureOptions) -> None:
    """``INVALID_CONFIG`` for what no stage of a pipeline does."""
    mode = capture.mode or DEFAULT_MODE
    if mode not in (DEFAULT_MODE, "backward"):
        raise InvalidConfig(f"--mode {mode}: not with --pp, whose steps are whole", fix="use --mode backward")
    refuse({"--decode": capture.decode or None}, "not with --pp: a cache of micro-batches is not modelled")
    refuse(
        {"--autocast": capture.autocast},
        "not with --pp: a schedule runs forward and backward passes in one call, and a region ends before the latter",
        fix="give --dtype",
    )
    if capture.loss not in _STAGED_LOSSES:
        raise InvalidConfig(f"--loss {capture.loss}: not with --pp", fix="give cross_entropy, or leave it out")


def _require_expert_ranks(ep: int, tp: int, fsdp: int) -> None:
    """``INVALID_CONFIG`` for ranks of experts that are none of those that weights are cut over."""
    if ep != 1 and (ep % tp or tp * fsdp % ep):
        raise InvalidConfig(
            f"--ep {ep}: experts lie on ranks of --tp {tp} and --fsdp {fsdp}, which it does not part",
            fix="choose a multiple of tp that divides tp x fsdp",
        )
