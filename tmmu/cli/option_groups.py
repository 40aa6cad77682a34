"""Groups of options: dataclasses that commands take as one parameter, and that typer reads option by option.

An option that is added to a group is an option of every command that takes the group: ``expand_groups`` gives typer a
signature with the fields of each group in its place, and makes the group of the parsed values.
"""

import inspect
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import typer

from tmmu.errors import InvalidConfig

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AppliesTo:
    """Kinds of model for which an option means something, and what to say for others."""

    kinds: tuple[str, ...]
    otherwise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """Base of the groups: dataclasses whose fields are annotated with ``typer.Option``.

    ``HIDDEN`` maps old spellings, which still work and are in no help, to the fields that they set.
    ``from_environment`` names the fields that an environment variable set: these are defaults, and never refused.
    """

    HIDDEN: ClassVar[Mapping[str, str]] = {}
    from_environment: frozenset[str] = frozenset()

    def given_options(self) -> Iterator[tuple[str, object]]:
        """The options of the group that the command line names, as ``--name`` and value."""
        for name, flag in flags(type(self)).items():
            value = getattr(self, name)
            if is_given(value) and name not in self.from_environment:
                yield flag, value

    def words(self, *, without: Collection[str] = ()) -> Iterator[str]:
        """The options that the command line names, each with its value, as a shell reads them."""
        for flag, value in self.given_options():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if flag not in without:
                    yield flag if one is True else f"{flag} {shlex.quote(str(one))}"


def is_given(value: object) -> bool:
    """Whether an option has a value: a count of 0 is one."""
    return value is not None and value is not False and value != ()


def flags(group: type[OptionGroup]) -> dict[str, str]:
    """Per field of a group, the option's long name."""
    return {name: _flag(name, hint) for name, hint in _hints(group).items()}


def applications(group: type[OptionGroup]) -> dict[str, AppliesTo]:
    """Per option of a group, by its long name, the kinds of model that it is for."""
    hints = _hints(group)
    return {_flag(name, hint): marker for name, hint in hints.items() for marker in _markers(hint, AppliesTo)}


def switches(group: type[OptionGroup]) -> frozenset[str]:
    """The options of a group that take no value, by their long names."""
    return frozenset(_flag(name, hint) for name, hint in _hints(group).items() if get_args(hint)[0] is bool)


def command_words(*groups: OptionGroup) -> tuple[str, ...]:
    """The words of a command line that names the same options, but for ``--json``."""
    words: list[str] = []
    for group in groups:
        for flag, value in group.given_options():
            if flag == "--json":
                continue
            values = value if isinstance(value, (list, tuple)) else (value,)
            words += [
                word for item in values for word in ((flag.partition("/")[0],) if item is True else (flag, str(item)))
            ]
    return tuple(words)


def expand_groups(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command with the options of each of its groups in place of the group, for typer to read."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, OptionGroup)}

    @wraps(command)
    def run_expanded(context: typer.Context, **values: Any) -> Result:
        environment = frozenset(name for name in values if _is_from_environment(context, name))
        # An option may have the name of another group's parameter, so that groups must not go back into ``values``.
        gathered = {name: _gather(group, values, environment) for name, group in groups.items()}
        return command(**values, **gathered)

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _expand(groups[name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
    run_expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_expanded


def _is_from_environment(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _expand(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    hints, keyword = _hints(group), inspect.Parameter.KEYWORD_ONLY
    defaults = {option.name: option.default for option in fields(group)}
    for name, hint in hints.items():
        default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
        yield inspect.Parameter(name, keyword, default=default, annotation=hint)
    for spelling, name in group.HIDDEN.items():
        kind = Annotated[get_args(hints[name])[0], typer.Option(spelling, hidden=True)]  # type: ignore[valid-type]
        yield inspect.Parameter(_hidden(spelling), keyword, default=None, annotation=kind)


def _gather(group: type[OptionGroup], values: dict[str, Any], environment: frozenset[str]) -> OptionGroup:
    """The group of the parsed values, which are taken out; an old spelling sets its field."""
    parsed = {name: values.pop(name) for name in _hints(group)}
    for spelling, name in group.HIDDEN.items():
        old = values.pop(_hidden(spelling))
        if old is None:
            continue
        if parsed[name] is not None and name not in environment:
            raise InvalidConfig(f"{spelling} and {flags(group)[name]} are one option", fix="give the second alone")
        parsed[name] = old
        environment -= {name}
    return group(**parsed, from_environment=environment.intersection(parsed))


def _hidden(spelling: str) -> str:
    return "old_" + spelling.strip("-").replace("-", "_")


def _hints(group: type[OptionGroup]) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}


def _flag(name: str, hint: Any) -> str:
    """The option's long name. Inside ``Annotated`` typer takes the first spelling for a default."""
    spellings = [
        text
        for option in _markers(hint, typer.models.OptionInfo)
        for text in (option.default, *(option.param_decls or ()))
        if isinstance(text, str) and text.startswith("--")
    ]
    return spellings[0] if spellings else "--" + name.replace("_", "-")


def _markers(hint: Any, kind: type[Result]) -> list[Result]:
    return [marker for marker in get_args(hint)[1:] if isinstance(marker, kind)]
