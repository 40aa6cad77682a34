"""Attention over ranks that have a part of the sequence each (``context_parallel``): a ring in which keys go round.

Torch's own code runs: it cuts tensors where they lie, passes keys and values on, and merges the attention on each part.
What it computes on a causal sequence depends on the rank's place in the ring. What is passed on is under way while a
part is computed, and is waited for behind that; in a trace torch would wait at once, with less in memory.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from tmmu.errors import CaptureFailed
from tmmu.passes.capture.imports import from_import_on
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    COLLECTIVE_RESULT,
    RING_ATTENTION,
    RING_MODULE,
    RING_WAIT,
    ROTATERS,
    SEQUENCE_CUT,
    functional_collectives,
    ring_options_restored,
)


@contextmanager
def rings_restored() -> Iterator[None]:
    """Block after which torch's settings of rings, which are the process's, are as before."""
    with from_import_on(RING_MODULE, ring_options_restored):
        yield


@contextmanager
def rings_noted(layouts: Layouts, source: Callable[[], str]) -> Iterator[None]:
    """Block in which ``layouts`` note the rings whose ranks do unlike work: those of causal attention.

    ``CAPTURE_FAILED`` for a sequence that ranks would have unlike parts of.
    """

    @contextmanager
    def watch(module: Any) -> Iterator[None]:
        attend, cut = getattr(module, RING_ATTENTION), getattr(module, SEQUENCE_CUT)

        @wraps(attend)
        def attend_in_ring(group: Any, *args: Any, is_causal: bool = False, **kwargs: Any) -> Any:
            if is_causal:
                layouts.note_group(group, source())
            return attend(group, *args, is_causal=is_causal, **kwargs)

        @wraps(cut)
        def cut_evenly(mesh: Any, buffers: Any, dims: Any, balancer: Any = None) -> Any:
            for tensor, dim in zip(buffers, dims, strict=False):
                if isinstance(tensor, torch.Tensor):
                    _require_even(
                        tensor.shape[dim], ranks=mesh.size(), is_balanced=balancer is not None, where=source()
                    )
            return cut(mesh, buffers, dims, balancer)

        with (
            replace_attribute(module, RING_ATTENTION, attend_in_ring),
            replace_attribute(module, SEQUENCE_CUT, cut_evenly),
            _passed_on_while_computing(module),
        ):
            yield

    with from_import_on(RING_MODULE, watch):
        yield


@contextmanager
def _passed_on_while_computing(module: Any) -> Iterator[None]:
    """Block in which what is passed on lives, and what is received is not waited for, until torch waits for it.

    So it is in eager: the handle of such a call holds what it reads.
    """
    under_way: dict[int, torch.Tensor] = {}
    wait = getattr(module, RING_WAIT)

    def passing_on(exchange: Callable[..., None]) -> Callable[..., None]:
        @wraps(exchange)
        def exchange_buffers(rotater: Any, sent: torch.Tensor) -> None:
            def begun(received: torch.Tensor) -> torch.Tensor:
                under_way[id(received)] = sent
                return received

            with replace_attribute(functional_collectives(), COLLECTIVE_RESULT, begun):
                exchange(rotater, sent)

        return exchange_buffers

    @wraps(wait)
    def await_received(received: torch.Tensor) -> Any:
        if under_way.pop(id(received), None) is None:
            return wait(received)
        return torch.ops._c10d_functional.wait_tensor.default(received)

    with ExitStack() as stack:
        stack.enter_context(replace_attribute(module, RING_WAIT, await_received))
        for name in ROTATERS:
            rotater = getattr(module, name)
            stack.enter_context(replace_attribute(rotater, "exchange_buffers", passing_on(rotater.exchange_buffers)))
        yield


def _require_even(length: int, *, ranks: int, is_balanced: bool, where: str) -> None:
    """Torch refuses unlike parts without a word where they are balanced, and else exchanges tensors of unlike sizes."""
    parts = ranks * (2 if is_balanced else 1)
    if length % parts:
        kind = "a head and a tail for each" if is_balanced else "one for each"
        raise CaptureFailed(
            f"{where + ': ' if where else ''}a sequence of {length} is cut into {parts} parts, {kind} of {ranks} "
            "ranks, which are not equal then",
            fix=f"make its length a multiple of {parts}",
            where=where,
        )
