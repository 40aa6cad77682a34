"""One sample in eager and by each route of tmmu: planned for inference, planned with gradients, and compiled.

Each route gets twins of the same tensors and the same seed. What a route gives is compared with eager's first run;
where eager's second run differs from its first, the call has no one value, and no route is run.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.operators.comparison import difference, distinct, tensors_in, whole_storages
from benchmarks.operators.samples import Case, Tensors
from tmmu import backend
from tmmu.errors import CaptureFailed, InvalidConfig, TmmuError, UnsupportedOp
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.failures.translate import translate_errors
from tmmu.passes.capture.fake.compatibility import real_looking_fakes
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind

TOKEN: Final = token_from_seed(4)
SEED: Final = 11
EQUAL, REFUSED, PLAIN, NO_GRAPH = "equal", "refused", "by torch", "no graph"
OTHER, EXCEPTION, UNSTABLE, UNDEFINED = "other bits", "exception", "eager differs", "eager raises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a route gave: why, and the fault of torch that excuses it, if any."""

    route: str
    outcome: str
    reason: str = ""
    excuse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """Results, and arguments (the whole of them) or gradients after them; ``None`` for a gradient that is not there."""

    results: list[torch.Tensor]
    after: list[torch.Tensor | None]


def outcomes(case: Case, *, bits: bool = True) -> Iterator[Outcome]:
    """The outcome of each route that the sample has."""
    eager = _stable(lambda: _run_eager(case), bits=bits)
    if isinstance(eager, Outcome):
        yield eager
    else:
        yield _attempt("plan", lambda: _planned(case, eager, bits=bits))
        if not case.trains:
            yield from _compiled(case, eager, trained=False, bits=bits)
    if case.trains:
        trained = _stable(lambda: _call_trained(case, case.call_on_copy), bits=bits)
        if isinstance(trained, Outcome):
            yield Outcome(route="train", outcome=trained.outcome, reason=trained.reason)
            return
        if trained.after:
            yield _step_outcome(case, bits=bits)
        yield from _compiled(case, trained, trained=True, bits=bits)


def _step_outcome(case: Case, *, bits: bool) -> Outcome:
    """The outcome of ``backward``; its loss weighs results, which eager may refuse where it gives results."""
    eager = _stable(lambda: _Left(results=_eager_step(case), after=[]), bits=bits)
    if isinstance(eager, Outcome):
        return Outcome(route="train", outcome=eager.outcome, reason=eager.reason)
    return _attempt("backward", lambda: _planned_step(case, eager.results, bits=bits))


def _stable(run: Callable[[], _Left], *, bits: bool) -> _Left | Outcome:
    try:
        first, second = run(), run()
    except Exception as error:  # noqa: BLE001 - whatever eager refuses is no sample
        return Outcome(route="eager", outcome=UNDEFINED, reason=_words(error))
    words = difference(second.results, first.results, bits=bits) or difference(second.after, first.after, bits=bits)
    return Outcome(route="eager", outcome=UNSTABLE, reason=words) if words else first


def _attempt(route: str, run: Callable[[], Outcome]) -> Outcome:
    """The outcome of a planned route; a refusal by a code of docs/spec/errors.md that names the caller is one."""
    try:
        return run()
    except (UnsupportedOp, CaptureFailed, InvalidConfig) as error:
        # Binding and running get what capture admitted: a refusal there of an operator that eager runs is a fault.
        is_refusal = not isinstance(error, InvalidConfig)
        return Outcome(route=route, outcome=REFUSED if is_refusal else EXCEPTION, reason=str(error))
    except TmmuError as error:
        return Outcome(route=route, outcome=EXCEPTION, reason=str(error))
    except Exception as error:  # noqa: BLE001 - the row says what it was
        return Outcome(route=route, outcome=EXCEPTION, reason=_words(error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# -- eager


def _run_eager(case: Case) -> _Left:
    tensors = case.twins()
    torch.manual_seed(SEED)
    with torch.no_grad():
        results = distinct(tensors_in(case.call(tensors)))
    return _Left(results=results, after=list(tensors.values()))


def _call_trained(case: Case, call: Callable[[Tensors], Any]) -> _Left:
    """Results and gradients of all leaves that ask for one."""
    tensors = case.twins(trained=True)
    torch.manual_seed(SEED)
    results = list(tensors_in(call(tensors)))
    roots = [tensor for tensor in results if tensor.requires_grad]
    leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
    if not roots or not leaves:
        return _Left(results=results, after=[])
    grads = torch.autograd.grad(roots, leaves, [_weights(root) for root in roots], allow_unused=True)
    return _Left(results=[tensor.detach() for tensor in results], after=list(grads))


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    """What a result is weighed with: small whole numbers that differ from element to element."""
    return (torch.arange(tensor.numel()) % 5 + 1).reshape(tensor.shape).to(tensor.dtype)


def _loss(case: Case, tensors: Tensors) -> torch.Tensor:
    """The weighed sum of all results that can be trained; complex ones count with both parts."""
    roots = [tensor for tensor in tensors_in(case.call_on_copy(tensors)) if tensor.requires_grad]
    terms = [tensor * _weights(tensor) for tensor in roots]
    parts = [part for term in terms for part in ((term.real, term.imag) if term.is_complex() else (term,))]
    return torch.stack([part.sum().to(torch.float32) for part in parts]).sum()


# -- planned


def _planned(case: Case, eager: _Left, *, bits: bool) -> Outcome:
    """Two runs: the first as views of the plan's memory, the second into what the first left behind."""
    executor = _bound(case, mode="inference")
    for views in (True, False):
        tensors = case.twins()
        torch.manual_seed(SEED)
        results = executor.run(tensors, views=views)
        if len(executor.outputs) != len(executor.bound.graph.outputs):
            return Outcome(route="plan", outcome=OTHER, reason="the plan computes not all outputs")
        results = [results[executor.outputs.index(value)] for value in executor.bound.graph.outputs]
        words = difference(results, eager.results, bits=bits, lazy=False, strides=views)
        words = words or difference(whole_storages(tensors.values()), whole_storages(eager.after), bits=bits)
        if words:
            return Outcome(route="plan", outcome=OTHER, reason=words)
    return Outcome(route="plan", outcome=EQUAL)


def _planned_step(case: Case, wanted: list[torch.Tensor], *, bits: bool) -> Outcome:
    """Two runs; other bits that eager has itself as soon as a mode watches its calls are a fault of torch's formula."""
    executor = _bound(case, mode="backward")
    for _ in range(2):
        torch.manual_seed(SEED)
        results = executor.run(case.twins(), views=True)
        results = [results[executor.outputs.index(value)] for value in executor.bound.graph.outputs]
        words = difference(results, wanted, bits=bits, lazy=False)
        if words:
            with _Watch():
                watched = _eager_step(case)
            excuse = "" if difference(results, watched, bits=bits, lazy=False) else "eager has it under a dispatch mode"
            return Outcome(route="backward", outcome=OTHER, reason=words, excuse=excuse)
    return Outcome(route="backward", outcome=EQUAL)


class _Watch(TorchDispatchMode):
    """Passes every call on: some formulas of autograd look whether there is a mode, and compute otherwise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _eager_step(case: Case) -> list[torch.Tensor]:
    """Loss and gradients, as a training step lists them."""
    tensors = case.twins(trained=True)
    torch.manual_seed(SEED)
    loss = _loss(case, tensors)
    loss.backward()
    return distinct([loss.detach(), *(t.grad for t in tensors.values() if t.grad is not None)])


def _bound(case: Case, *, mode: str) -> Any:
    trained = mode == "backward"
    with fake_environment("cpu"):
        with translate_errors(""), Recorder():
            inputs = _declared(case, trained=trained)
        work = Workload(
            name="operator",
            folder="",
            run=lambda **tensors: case.call_on_copy(tensors) if trained else case.call(tensors),
            kwargs=inputs,
            loss=(lambda _, **tensors: _loss(case, tensors)) if trained else None,
            gives_values=True,
        )
        with translate_errors(""), real_looking_fakes():
            captured = trace(work, CaptureRequest(model="operator", device="cpu", mode=mode), no_progress)
    program = lower_program(captured)
    preset = "remat_enabled" if trained else "inference"
    plan = prepare_memory(program.graph, mode=mode, preset=preset, token=TOKEN, arenas=default_arenas(alignment=64))
    return bind(program, plan, token=TOKEN, weights=constant_values(captured))


def _declared(case: Case, *, trained: bool) -> dict[str, torch.Tensor]:
    """The inputs as a model's file makes them, of numbers: fake, with values that the trace may look at."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    return {name: _fake(tensor, storages, trained=trained) for name, tensor in case.tensors.items()}


def _fake(
    tensor: torch.Tensor, storages: dict[tuple[int, torch.dtype], torch.Tensor], *, trained: bool
) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise UnsupportedOp(f"the sample holds a {tensor.layout} tensor", fix="give it dense tensors")
    storage = tensor.untyped_storage()
    key = storage._cdata, tensor.dtype
    if key not in storages:
        with torch._C._DisableTorchDispatch():
            numbers = torch.empty(0, dtype=tensor.dtype).set_(storage)
        storages[key] = numbers.clone()
    with torch.no_grad():
        fake = storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        fake = torch._neg_view(fake) if tensor.is_neg() else fake
        fake = (fake.conj() if tensor.is_conj() else fake).detach()
    return fake.requires_grad_(trained and tensor.requires_grad)


# -- compiled


def _compiled(case: Case, eager: _Left, *, trained: bool, bits: bool) -> Iterator[Outcome]:
    """The call compiled; where its outcome is a fault, beside ``aot_eager``, which shares all of torch's own parts."""
    backend._GRAPHS[:] = []
    try:
        words = _compiled_difference(case, eager, "tmmu", trained=trained, bits=bits)
    except Exception as error:  # noqa: BLE001 - the row says what it was
        words, outcome = _words(error), EXCEPTION
    else:
        outcome = OTHER if words else EQUAL
    if outcome == EQUAL:
        yield _way_of_graphs()
        return
    yield Outcome(route="compile", outcome=outcome, reason=words, excuse=_excuse(case, eager, words, trained, bits))


def _way_of_graphs() -> Outcome:
    """How equal results came about."""
    reports = backend.reports()
    reasons = [reason for report in reports for reason in report.plain]
    if reasons:
        return Outcome(route="compile", outcome=PLAIN, reason=reasons[0])
    ran = any(report.planned for report in reports)
    return Outcome(route="compile", outcome=EQUAL if ran else NO_GRAPH)


def _excuse(case: Case, eager: _Left, words: str, trained: bool, bits: bool) -> str:  # noqa: FBT001
    try:
        theirs = _compiled_difference(case, eager, "aot_eager", trained=trained, bits=bits)
    except Exception as error:  # noqa: BLE001 - the same fault
        theirs = _words(error)
    if theirs.replace("aot_eager", "tmmu") == words:
        return "aot_eager has it too"
    return "eager has it where copy_ writes the change" if trained and _copies_change(case, bits=bits) else ""


def _copies_change(case: Case, *, bits: bool) -> bool:
    """Whether the compiled call gives what eager gives where ``copy_`` writes the change in place.

    AOTAutograd writes each change so. The gradient of what was there before is zeros then, which are added: a negative
    zero becomes a positive one. ``aot_eager`` cannot always be asked: it raises where a gradient needs the argument.
    """
    if not case.in_place:
        return False
    copied = _stable(lambda: _call_trained(case, lambda tensors: _change_by_copy(case, tensors)), bits=bits)
    if isinstance(copied, Outcome):
        return False
    try:
        return not _compiled_difference(case, copied, "tmmu", trained=True, bits=bits)
    except Exception:  # noqa: BLE001 - it gives nothing
        return False


def _change_by_copy(case: Case, tensors: Tensors) -> torch.Tensor:
    args, kwargs = case.arguments(tensors)
    changed = args[0].clone()
    return changed.copy_(case.function(changed.clone(), *args[1:], **kwargs))  # type: ignore[no-any-return]


def _compiled_difference(case: Case, eager: _Left, name: str, *, trained: bool, bits: bool) -> str:
    torch._dynamo.reset()
    run = torch.compile(_plain_function(case.function), backend=name, dynamic=False)
    for _ in range(2):
        if trained:
            left = _call_trained(case, lambda tensors: _on_copy(case, run, tensors))
        else:
            left = _without_gradients(case, run)
        words = difference(left.results, eager.results, bits=bits) or difference(left.after, eager.after, bits=bits)
        if words:
            return words
    return ""


def _on_copy(case: Case, run: Callable[..., Any], tensors: Tensors) -> Any:
    args, kwargs = case.arguments(tensors)
    return run(*((args[0].clone(), *args[1:]) if case.in_place else args), **kwargs)


def _without_gradients(case: Case, run: Callable[..., Any]) -> _Left:
    tensors = case.twins()
    args, kwargs = case.arguments(tensors)
    torch.manual_seed(SEED)
    with torch.no_grad():
        results = distinct(tensors_in(run(*args, **kwargs)))
    return _Left(results=results, after=list(tensors.values()))


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as a function of Python, which Dynamo takes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Kernels that capture models, and one thread: small ones only wait for a second."""
    enabled, threads = torch._C._get_mkldnn_enabled(), torch.get_num_threads()
    torch._C._set_mkldnn_enabled(False)  # noqa: FBT003 - it takes no keyword
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
        torch.set_num_threads(threads)
