"""The update of a training step, by the optimizer's own code: any class of ``torch.optim``, or what a file makes.

A text names it: ``adamw``, ``sgd:momentum=0.9,nesterov=true``, ``adam:fused``. Forms are torch's: ``fused`` (one kernel
over all parameters), ``foreach`` (one kernel per arithmetic step over all parameters, with temporaries as large as
they are) and ``forloop`` (parameter after parameter). Without one it is the form that torch picks by itself on the
device: foreach on a GPU where the class has it, else the loop.

A file's ``optimizer(params)`` makes its own, as it does for a real run.

What is traced is a step whose state exists. It is made by a step on twins of the parameters, whose gradients are zero,
and then begins at zero. A count of steps is a number that the update reads; it is known, since it counts from zero as
all state does. So a class whose code asks how many steps there were (RAdam, in its first five) is traced as it is then.
"""

import ast
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, Protocol, TypeAlias

import torch

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import FILE_OPTIMIZER
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.tree import is_wrapper, plain_tensors

FORMS: Final = ("fused", "foreach", "forloop")
_CLOSURES: Final = frozenset({"lbfgs"})
"""They evaluate the model as often in a step as the values of its losses say."""
_BY_LOSSES: Final = "how often a step of it evaluates the model depends on losses, so that no plan holds for it"
_FOREACH_OF_NUMBERS: Final = frozenset({"adam", "adamw"})
"""Their foreach takes a learning rate that is a tensor only with ``capturable``."""
_FOREACH_BY_NAME: Final = frozenset({"adafactor"})
"""Whoever takes them saves memory: torch picks their foreach only where it is named."""
_REFUSALS: Final = (AssertionError, AttributeError, TypeError, ValueError, RuntimeError)
"""What torch raises of arguments, and of parameters, that a class does not take."""
_WORDS: Final = {"true": True, "false": False, "none": None}
_TENSOR: Final = re.compile(r"tensor\(([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\)", re.IGNORECASE | re.ASCII)
Trained = Sequence[tuple[str, torch.Tensor, torch.Tensor]]
"""(name, parameter, gradient) of each parameter that got one."""


class StateKeeper(Protocol):
    """What an update tells its recorder."""

    def make_state(self) -> AbstractContextManager[None]:
        """Block whose calls are no part of the program, and in which numbers of tensors are arbitrary."""

    def keep_optimizer(self, make: Callable[[], torch.optim.Optimizer], /) -> torch.optim.Optimizer:
        """The optimizer of an earlier step, or else the one that ``make`` gives."""

    def keep_state(self, tensor: torch.Tensor, /, *, name: str) -> torch.Tensor:
        """The tensor that outlives the step under this name: the one of an earlier step, or else this one, zero."""


@dataclass(frozen=True, slots=True)
class TensorNumber:
    """An argument ``tensor(0.1)``: a number that the optimizer is given as a tensor of no dimensions."""

    number: float

    def __str__(self) -> str:
        return f"tensor({self.number!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """A class of ``torch.optim`` in lower case, its form, and its arguments."""

    name: str
    form: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The text that names it, with the form."""
        settings = [f"{key}={value}" for key, value in self.arguments.items()]
        return f"{self.name}:{','.join([self.form, *settings])}"

    def make(self, parameters: list[torch.Tensor], *, keeps_numbers: bool) -> torch.optim.Optimizer:
        """The optimizer of these parameters; ``INVALID_CONFIG``, in torch's words, for what its class does not take.

        ``keeps_numbers``: tensors of one number are given as numbers.
        """
        argument_of = _number_of if keeps_numbers else _argument_of
        maker: Callable[..., torch.optim.Optimizer] = optimizer_classes()[self.name]
        known = signature(maker).parameters
        form = {name: name == self.form for name in ("foreach", "fused") if name in known}
        arguments = {key: argument_of(value) for key, value in self.arguments.items()}
        try:
            return maker(parameters, **form, **arguments)
        except _REFUSALS as error:
            reason = " ".join(str(error).split())
            raise InvalidConfig(
                f"--optimizer {self.text}: {reason}", fix="correct its arguments, or name another"
            ) from error


@dataclass(frozen=True, slots=True)
class FileOptimizer:
    """The optimizer that a file's ``optimizer(params)`` makes; ``text`` is how ops of its update name it."""

    maker: Callable[..., Any]
    text: str = FILE_OPTIMIZER

    def make(self, parameters: list[torch.Tensor], *, keeps_numbers: bool) -> torch.optim.Optimizer:  # noqa: ARG002
        """The optimizer of these parameters; ``CAPTURE_FAILED`` where it is none, ``INVALID_CONFIG`` for L-BFGS."""
        with in_activity(Activity.FILE_OPTIMIZER):
            optimizer = self.maker(parameters)
        if not isinstance(optimizer, torch.optim.Optimizer):
            what = f"optimizer(params) makes a {type(optimizer).__name__}, not a torch.optim.Optimizer"
            raise CaptureFailed(what, fix="return the optimizer")
        if type(optimizer).__name__.lower() in _CLOSURES:
            raise InvalidConfig(f"optimizer(params) makes {type(optimizer).__name__}: {_BY_LOSSES}", fix="use another")
        return optimizer


Update: TypeAlias = OptimizerSpec | FileOptimizer
"""What makes the optimizer of a step."""


def parse_optimizer(text: str, device: str) -> OptimizerSpec:
    """``NAME[:ITEM,...]`` of forms and ``key=value``; ``INVALID_CONFIG`` for what ``torch.optim`` lacks."""
    name, _, rest = text.partition(":")
    makers = optimizer_classes()
    if name not in makers or name in _CLOSURES:
        known = ", ".join(key for key in makers if key not in _CLOSURES)
        reason = "no such optimizer in torch.optim"
        if name in _CLOSURES:
            reason = _BY_LOSSES
        raise InvalidConfig(f"--optimizer {text}: {reason}", fix=f"known: {known}")
    parameters = signature(makers[name]).parameters
    forms, arguments = list[str](), dict[str, Any]()
    for item in _split_items(rest):
        key, equals, value = item.partition("=")
        if not equals and key in FORMS:
            forms.append(key)
        elif not equals or key not in parameters or key in {"params", *FORMS}:
            takes = ", ".join(key for key in parameters if key not in {"params", *FORMS})
            raise InvalidConfig(f"--optimizer {text}: {name} takes no {item!r}", fix=f"it takes {takes}")
        elif key in arguments:
            raise InvalidConfig(f"--optimizer {text}: {key} stands twice", fix="leave one of them")
        else:
            arguments[key] = _value_of(value)
            _require_number(text, key, arguments[key], parameters[key].default)
    if len(forms) > 1:
        raise InvalidConfig(f"--optimizer {text}: {' and '.join(forms)} are two forms", fix="leave one of them")
    form = forms[0] if forms else ""
    if form in ("fused", "foreach") and form not in parameters:
        raise InvalidConfig(f"--optimizer {text}: {name} has no {form} form", fix="leave it out")
    if not form:
        form = "foreach" if device == "cuda" and _takes_foreach_by_itself(name, arguments) else "forloop"
    return OptimizerSpec(name=name, form=form, arguments=arguments)


def _require_number(text: str, key: str, value: object, default: object) -> None:
    """Refuses a text that reads as none of Python's literals, such as ``nan``, where the class takes a number."""
    if isinstance(value, str) and isinstance(default, (int, float)):
        fix = f"give a number{', or tensor(NUMBER)' if not isinstance(default, bool) else ''}, such as {default}"
        raise InvalidConfig(f"--optimizer {text}: {key} is the text {value!r}", fix=fix)


def _takes_foreach_by_itself(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether torch picks foreach where all parameters are on a GPU and nobody names a form."""
    has_form = "foreach" in signature(optimizer_classes()[name]).parameters and name not in _FOREACH_BY_NAME
    if not has_form or arguments.get("differentiable"):
        return False
    is_number = not isinstance(arguments.get("lr"), TensorNumber) or bool(arguments.get("capturable"))
    return is_number or name not in _FOREACH_OF_NUMBERS


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizers of this torch by name in lower case."""
    members = sorted(vars(torch.optim).items())
    base = torch.optim.Optimizer
    found = [(name, member) for name, member in members if isinstance(member, type) and issubclass(member, base)]
    return {name.lower(): member for name, member in found if member is not base}


def _split_items(text: str) -> list[str]:
    """The items between commas, those inside brackets aside."""
    depth, separated = 0, ""
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        separated += "\n" if letter == "," and depth == 0 else letter
    return [item.strip() for item in separated.split("\n") if item.strip()]


def _value_of(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    inside = _TENSOR.fullmatch(text)
    if inside is not None:
        return TensorNumber(float(inside[1]))
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def update(spec: Update, trained: Trained, recorder: StateKeeper) -> None:
    """One step of the optimizer on these parameters and their gradients."""
    recorder.keep_optimizer(lambda: _with_state(spec, trained, recorder)).step()


def _with_state(spec: Update, trained: Trained, recorder: StateKeeper) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter, _ in trained]
    optimizer = spec.make(parameters, keeps_numbers=False)
    with recorder.make_state():
        states = _states_of_twins(spec, parameters)
    for (name, parameter, _), state in zip(trained, states, strict=True):
        optimizer.state[parameter] = {key: _kept(value, f"{key}.{name}", recorder) for key, value in state.items()}
    return optimizer


def _kept(value: Any, name: str, recorder: StateKeeper) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    name = f"optimizer.{name}"
    if not is_wrapper(value):
        return recorder.keep_state(value, name=name)
    for part, inner in plain_tensors(name, value):
        recorder.keep_state(inner, name=part)
    return value


def _argument_of(value: Any) -> Any:
    return torch.tensor(value.number) if isinstance(value, TensorNumber) else value


def _number_of(value: Any) -> Any:
    return value.number if isinstance(value, TensorNumber) else value


def _states_of_twins(spec: Update, parameters: list[torch.Tensor]) -> list[dict[str, Any]]:
    """The state of each parameter after a step without gradient, on tensors of the same form.

    Classes of ``torch.optim`` keep what they know of a parameter with it, so that one twin stands for all of a form. A
    file's optimizer may keep the state of all with one of them: each has a twin.
    """
    forms = list(map(_form_of if isinstance(spec, OptimizerSpec) else id, parameters))
    originals = dict(zip(reversed(forms), reversed(parameters), strict=True))
    twins = {form: torch.zeros_like(originals[form].detach()).requires_grad_() for form in dict.fromkeys(forms)}
    for twin in twins.values():
        twin.grad = torch.zeros_like(twin)
    optimizer = spec.make(list(twins.values()), keeps_numbers=True)  # a tensor's number would be arbitrary here
    optimizer.step()
    if len(twins) == len(parameters):
        return [dict(optimizer.state[twin]) for twin in twins.values()]
    states = {form: optimizer.state[twin] for form, twin in twins.items()}
    return [{key: _of_same_form(value) for key, value in states[form].items()} for form in forms]


def _form_of(tensor: torch.Tensor) -> Hashable:
    """What tensors share whose states have one form; of a wrapper that cannot be compared, the tensor itself."""
    form = (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.layout)
    if not is_wrapper(tensor):
        return form
    try:
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = [getattr(tensor, name) for name in names]
        inner = [_form_of(part) if isinstance(part, torch.Tensor) else part for part in parts]
        form = (*form, context, *inner)
        hash(form)
    except Exception:  # noqa: BLE001 - the user's code
        return id(tensor)
    return form


def _of_same_form(value: Any) -> Any:
    """A new tensor like one of a state; what is none, itself."""
    if not isinstance(value, torch.Tensor):
        return value
    if not is_wrapper(value):
        return torch.empty_like(value)
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {name: _of_same_form(getattr(value, name)) for name in names}
    return type(value).__tensor_unflatten__(parts, context, value.shape, value.stride())  # type: ignore[attr-defined]
