"""The process group of one rank of many, without the others: torch's ``fake`` backend, there while a model is traced.

A program that makes its own group gets this one, whatever backend it names, where it names the same size and rank. The
environment says what ``torchrun`` says to such a rank. Afterwards the process has no group, as before.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.imports import outside_modes
from tmmu.passes.capture.ranks.meshes import real_meshes
from tmmu.passes.capture.ranks.running_rank import RunningRank
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import FakeStore, forget_shards

RANKS_OF_A_HOST: Final = 8
"""So many ranks share a host, as far as ``LOCAL_RANK`` says."""
UNNAMED: Final = -1
"""What ``init_process_group`` has for a number that it shall find out."""

_STOOD_FOR: Final = ("destroy_process_group", "get_rank", "init_process_group", "new_group")


@contextmanager
def process_group(world: int | None, rank: int) -> Iterator[None]:
    """Block in which this process is ``rank`` of ``world`` ranks; as it is without ``world``.

    ``INVALID_CONFIG`` where the process has a group already, and for one of the program that is another.
    """
    if world is None:
        yield
        return
    if not torch.distributed.is_available():
        raise InvalidConfig("torch was built without torch.distributed", fix="install a torch that has it")
    if torch.distributed.is_initialized():
        raise InvalidConfig(
            f"this process has a process group of its own, of {torch.distributed.get_world_size()} ranks",
            fix="leave out world and rank to plan what this group's rank does, or plan before the group is made",
        )
    with _group_for_all(world, rank, backend="fake", store=FakeStore()), _environment_of(world, rank):
        yield


@contextmanager
def running_process_group(running: RunningRank) -> Iterator[None]:
    """Block in which this process is that rank, beside processes that are the others, in a group of ``gloo``.

    A program that makes its own group gets this one, and meshes are of the CPU.
    """
    with ExitStack() as stack:
        try:
            group = _group_for_all(running.world, running.rank, init_method=running.meeting, backend="gloo")
            stack.enter_context(group)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidConfig(
                f"rank {running.rank} of {running.world} does not find the others: {reason}",
                fix="start all ranks by tmmu run --world, or by torchrun",
            ) from error
        stack.enter_context(real_meshes("cpu"))
        yield


@contextmanager
def _group_for_all(world: int, rank: int, **options: Any) -> Iterator[None]:
    """Block with a process group of these options, which stands for any that the program makes."""
    excepthook = sys.excepthook  # which torch replaces
    torch.distributed.init_process_group(rank=rank, world_size=world, **options)
    forget_shards()  # torch keeps what it computed for the rank of an earlier group
    destroy = torch.distributed.destroy_process_group
    try:
        with ExitStack() as stack:
            for name, replacement in _replacements(world, rank).items():
                for module in (torch.distributed, torch.distributed.distributed_c10d, torch.distributed.device_mesh):
                    if hasattr(module, name):
                        stack.enter_context(replace_attribute(module, name, replacement))
            stack.enter_context(replace_attribute(torch.cuda, "set_device", _ignore_device))
            yield
    finally:
        destroy()
        forget_shards()
        sys.excepthook = excepthook


def _replacements(world: int, rank: int) -> Mapping[str, Callable[..., Any]]:
    """What stands for the functions of ``torch.distributed`` that make and end groups."""
    make_group, destroy = torch.distributed.new_group, torch.distributed.destroy_process_group
    parameters = inspect.signature(torch.distributed.init_process_group)

    @wraps(torch.distributed.init_process_group)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        named = parameters.bind(*args, **kwargs).arguments
        for what, option, expected in (("world_size", "world", world), ("rank", "rank", rank)):
            number = named.get(what, UNNAMED)
            if number not in (UNNAMED, expected):
                raise InvalidConfig(
                    f"the program makes a process group of {what} {number}, where {option} says {expected}",
                    fix=f"leave {what} out of init_process_group, or name another {option}",
                )

    @wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if group is not None and group is not torch.distributed.group.WORLD:
            destroy(group)

    @wraps(make_group)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(make_group).bind(*args, **kwargs)
        call.arguments.pop("backend", None)
        call.arguments.pop("pg_options", None)
        with outside_modes():
            return make_group(**call.arguments)

    return {
        "init_process_group": init_process_group,
        "destroy_process_group": destroy_process_group,
        "new_group": new_group,
    }


def stand_ins_by_identity() -> dict[int, Callable[..., Any]]:
    """By the identity of torch's own function, what stands for it in the blocks of a trace: for code that imported it
    by its name before.
    """
    stand_ins: list[Any] = [getattr(torch.distributed, name) for name in _STOOD_FOR]
    return {id(stand_in.__wrapped__): stand_in for stand_in in stand_ins}


def _ignore_device(_: Any) -> None:
    """A rank has one device, the traced one."""


@contextmanager
def _environment_of(world: int, rank: int) -> Iterator[None]:
    """Block with the variables that ``torchrun`` sets for a rank."""
    on_host = min(world, RANKS_OF_A_HOST)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % on_host,
        "LOCAL_WORLD_SIZE": on_host,
        "GROUP_RANK": rank // on_host,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
