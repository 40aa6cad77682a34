"""The update of a training step, by the optimizer's own code: any class of ``torch.optim``, in a form of its own.

A text names it: ``adamw``, ``sgd:momentum=0.9,nesterov=true``, ``adam:fused``. Forms are torch's: ``fused`` (one kernel
over all parameters), ``foreach`` (one kernel per arithmetic step over all parameters, with temporaries as large as
they are) and ``forloop`` (parameter after parameter). Without one it is the form that torch picks by itself on the
device: foreach on a GPU where the class has it, else the loop.

What is traced is a step whose state exists. It is made by a step on twins of the parameters, whose gradients are zero,
and then begins at zero. A count of steps is a number that the update reads; it is known, since it counts from zero as
all state does. So a class whose code asks how many steps there were (RAdam, in its first five) is traced as it is then.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, Protocol

import torch

from tmmu.errors import InvalidConfig

FORMS: Final = ("fused", "foreach", "forloop")
_CLOSURES: Final = frozenset({"lbfgs"})
"""They evaluate the model several times in a step."""
_WORDS: Final = {"true": True, "false": False, "none": None}
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


def parse_optimizer(text: str, device: str) -> OptimizerSpec:
    """``NAME[:ITEM,...]`` of forms and ``key=value``; ``INVALID_CONFIG`` for what ``torch.optim`` lacks."""
    name, _, rest = text.partition(":")
    makers = optimizer_classes()
    if name not in makers or name in _CLOSURES:
        known = ", ".join(key for key in makers if key not in _CLOSURES)
        reason = " that evaluates the model once" if name in _CLOSURES else ""
        raise InvalidConfig(f"--optimizer {text}: no such optimizer in torch.optim{reason}", fix=f"known: {known}")
    parameters = signature(makers[name]).parameters
    form, arguments = "", dict[str, Any]()
    for item in _split_items(rest):
        key, equals, value = item.partition("=")
        if not equals and key in FORMS:
            form = key
        elif not equals or key not in parameters or key in {"params", *FORMS}:
            takes = ", ".join(key for key in parameters if key not in {"params", *FORMS})
            raise InvalidConfig(f"--optimizer {text}: {name} takes no {item!r}", fix=f"it takes {takes}")
        else:
            arguments[key] = _value_of(value)
    if form in ("fused", "foreach") and form not in parameters:
        raise InvalidConfig(f"--optimizer {text}: {name} has no {form} form", fix="leave it out")
    default = "foreach" if device == "cuda" and "foreach" in parameters else "forloop"
    return OptimizerSpec(name=name, form=form or default, arguments=arguments)


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
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def update(spec: OptimizerSpec, trained: Trained, recorder: StateKeeper) -> None:
    """One step of the optimizer on these parameters and their gradients."""
    recorder.keep_optimizer(lambda: _with_state(spec, trained, recorder)).step()


def _with_state(spec: OptimizerSpec, trained: Trained, recorder: StateKeeper) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter, _ in trained]
    optimizer = _make(spec, parameters)
    with recorder.make_state():
        states = _states_of_twins(spec, parameters)
    for (name, parameter, _), state in zip(trained, states, strict=True):
        optimizer.state[parameter] = {key: _kept(value, f"{key}.{name}", recorder) for key, value in state.items()}
    return optimizer


def _kept(value: Any, name: str, recorder: StateKeeper) -> Any:
    is_tensor = isinstance(value, torch.Tensor)
    return recorder.keep_state(value, name=f"optimizer.{name}") if is_tensor else value


def _make(spec: OptimizerSpec, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    maker: Callable[..., torch.optim.Optimizer] = optimizer_classes()[spec.name]
    known = signature(maker).parameters
    form = {name: name == spec.form for name in ("foreach", "fused") if name in known}
    return maker(parameters, **form, **spec.arguments)


def _states_of_twins(spec: OptimizerSpec, parameters: list[torch.Tensor]) -> list[dict[str, Any]]:
    """The state of each parameter after a step without gradient, on tensors of the same form."""
    twins = [torch.zeros_like(parameter.detach()).requires_grad_() for parameter in parameters]
    for twin in twins:
        twin.grad = torch.zeros_like(twin)
    optimizer = _make(spec, twins)
    optimizer.step()
    return [dict(optimizer.state[twin]) for twin in twins]
