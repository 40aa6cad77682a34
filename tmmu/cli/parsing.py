"""From option texts to checked values, before torch is imported."""

import ast
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from tmmu.cli.option_groups import is_given
from tmmu.codec.files import is_special, read_file
from tmmu.codec.load import IR_SUFFIX, PLAN_SUFFIX, ir_path
from tmmu.codec.value_text import parse_value
from tmmu.errors import InvalidConfig, InvalidToken, PlanCorrupt, TmmuError, UserError
from tmmu.ir.plan import ArenaSpec
from tmmu.planner.arenas import parse_arenas, parse_size
from tmmu.planner.token import check_token, token_from_seed
from tmmu.planner.token import parse_token as token_from_hex
from tmmu.summary.plan_summary import DEFAULT_RESERVE

T = TypeVar("T")

DEFAULT_SEED: Final = 0
_OPTIMIZER: Final = re.compile(r"[a-z]\w*(:.+)?", re.IGNORECASE | re.ASCII)
DEFAULT_MODE: Final = "inference"
_BALANCE: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
SOURCE_LIMIT: Final = 1 << 22
"""Bytes of a Python file that is looked into before it is run."""
NODES_MAX: Final = 2**40
COUNT_MAX: Final = 2**31 - 1
TOKEN_FILE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgument:
    """A parsed MODEL; ``kind`` is ``file``, ``class``, ``module``, ``hf``, ``pt2`` or ``ir``."""

    text: str
    kind: str
    path: Path
    """The file or folder; the current folder if ``kind`` is ``module``."""
    name: str
    """Stem of the output files."""


def parse_model(text: str) -> ModelArgument:
    """The model that ``text`` names, which need not exist; ``InvalidConfig`` for an unknown kind."""
    if text.startswith("hf:"):
        path = Path(text[3:])
        folder = path.parent if path.name == "config.json" else path
        return ModelArgument(text=text, kind="hf", path=path, name=folder.absolute().name or "model")
    for suffix, kind in ((IR_SUFFIX, "ir"), (".pt2", "pt2"), (".py", "file")):
        if text.endswith(suffix) and len(Path(text).name) > len(suffix):
            return ModelArgument(text=text, kind=kind, path=Path(text), name=Path(text).name[: -len(suffix)])
    file, colon, attribute = text.rpartition(":")
    if colon and file.endswith(".py") and attribute.isidentifier():
        return ModelArgument(text=text, kind="class", path=Path(file), name=f"{Path(file).stem}.{attribute}")
    if colon and all(part.isidentifier() for part in (*file.split("."), attribute)):
        name = f"{file}.{attribute}"
        return ModelArgument(text=text, kind="module", path=Path(), name=name)
    raise InvalidConfig(
        f"no such kind of model: {text!r}",
        fix="name model.py, model.py:Name, package.module:Name, hf:PATH, program.pt2 or graph.ir.cbor",
    )


def parse_reserve(text: str | None) -> int:
    """Bytes of ``--reserve``, or ``DEFAULT_RESERVE``."""
    return DEFAULT_RESERVE if text is None else parse_option("--reserve", lambda: parse_size(text))


def parse_optimizer_text(text: str | None) -> str | None:
    """``NAME[:ITEM,...]``, not looked up yet: that takes torch."""
    if text is not None and _OPTIMIZER.fullmatch(text) is None:
        raise InvalidConfig(f"--optimizer {text!r} is not NAME[:ITEM,...]", fix="for example adamw or sgd:momentum=0.9")
    return text


def parse_settings(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(name, text) of each ``--set name=value``; ``InvalidConfig`` for a name that comes twice, or no form of value."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidConfig(f"--set: {text!r} is not name=value", fix="for example --set seq=2048")
        if name in pairs:
            raise InvalidConfig(f"--set: {name!r} is given twice", fix="keep one of them")
        parse_option(f"--set {name}", partial(parse_value, value))
        pairs[name] = value
    return tuple(pairs.items())


def arena_specs(texts: Sequence[str]) -> tuple[ArenaSpec, ...]:
    """The default arenas, changed by each ``--arena``."""
    return parse_option("--arena", lambda: parse_arenas(texts))


def parse_token(seed: int | None, token: str | None, token_file: Path | None) -> bytes | None:
    """The replay token that at most one of the three names, or ``None``."""
    spellings = [
        name
        for name, value in (("--seed", seed), ("--token", token), ("--token-file", token_file))
        if value is not None
    ]
    if len(spellings) > 1:
        raise InvalidConfig(f"{' and '.join(spellings)} all name the replay token", fix="give one of them")
    if seed is not None:
        return parse_option("--seed", lambda: token_from_seed(seed))
    if token is not None:
        return parse_option("--token", lambda: token_from_hex(token))
    if token_file is not None:
        return parse_option("--token-file", lambda: check_token(_token_bytes(token_file)))
    return None


def parse_option(option: str, parse: Callable[[], T]) -> T:
    """The result of ``parse``; its errors name the option."""
    try:
        return parse()
    except UserError as error:
        raise type(error)(f"{option}: {error.what}", fix=error.fix, **error.fields) from error


def _token_bytes(path: Path) -> bytes:
    try:
        return read_file(path, limit=TOKEN_FILE_MAX)
    except PlanCorrupt as error:
        raise InvalidToken(error.what, fix="use a shorter token") from error


def plan_path(output: str | None, model: ModelArgument) -> Path:
    """The plan's output file: ``--output``, ``NAME.plan.cbor`` in the folder that it names, or in the current one."""
    name = model.name + PLAN_SUFFIX
    if output is None:
        return Path(name)
    path = parse_file(output, "--output")
    return path / name if path.is_dir() else path


def parse_file(text: str, option: str) -> Path:
    """``text`` as a path; ``InvalidConfig`` if it is empty or names a folder, such as ``out/``, that does not exist."""
    if not text:
        raise InvalidConfig(f"{option}: no file is named", fix="name one, or leave the option out")
    if text.endswith(("/", "/.", os.sep)) and not Path(text).is_dir():
        raise InvalidConfig(f"{option}: no folder {text}", fix="make it first, or name a file")
    return Path(text)


def graph_output(ir: str | None, plan: Path) -> Path | None:
    """The graph's output file: ``--ir``, or beside the plan; ``None`` if the plan goes to a device or a pipe."""
    if ir is not None:
        return parse_file(ir, "--ir")
    return None if is_special(plan) else ir_path(None, plan)


def require_writable(path: Path, option: str, *, never: Path) -> Path:
    """``path``, if it is a file in a folder that exists and not the input ``never``, else ``InvalidConfig``."""
    if path.is_dir():
        raise InvalidConfig(f"{option}: {path} is a folder", fix="name a file")
    if not path.parent.is_dir():
        raise InvalidConfig(f"{option}: no folder {path.parent}", fix="make it first, or name another")
    if same_file(path, never):
        raise InvalidConfig(f"{option}: {path} is the input itself", fix="name another file")
    return path


def same_file(path: Path, second: Path) -> bool:
    """Whether both exist and are one file, also under two names."""
    return path.exists() and second.exists() and path.samefile(second)


def require_nodes(value: int | None) -> int | None:
    """``value`` if it is ``None`` or in ``0..NODES_MAX``, else ``InvalidConfig``."""
    if value is not None and not 0 <= value <= NODES_MAX:
        raise InvalidConfig(f"--nodes: {value} is not in 0..{NODES_MAX}", fix="give a count")
    return value


def require_count(value: int | None, option: str) -> int | None:
    """``value`` if it is ``None`` or in ``1..COUNT_MAX``, else ``InvalidConfig``."""
    if value is not None and not 1 <= value <= COUNT_MAX:
        raise InvalidConfig(f"{option}: {value} is not in 1..{COUNT_MAX}", fix="give a count")
    return value


def refuse(options: Mapping[str, object], why: str, *, fix: str = "leave it out") -> None:
    """``InvalidConfig`` that names the options with a value, which would have no effect, and says ``why``."""
    names = [name for name, value in options.items() if is_given(value)]
    if names:
        raise InvalidConfig(f"{', '.join(names)}: {why}", fix=fix)


def parse_balance(text: str | None) -> Fraction | None:
    """FLOP per byte of ``--balance``; ``None`` for the default."""
    if text is None:
        return None
    if not _BALANCE.fullmatch(text) or not Fraction(text):
        raise InvalidConfig(f"--balance {text!r} is no number of FLOPs per byte", fix="write it as 100 or 37.5")
    return Fraction(text)


def trains_on_batch(path: Path, name: str, settings: Collection[str]) -> bool:
    """Whether ``name`` is a function of the file that needs what no ``--set`` gives, and calls ``backward``.

    The file is read and not run.
    """
    try:
        tree = ast.parse(read_file(path, limit=SOURCE_LIMIT))
    except (SyntaxError, ValueError, RecursionError, MemoryError, TmmuError):
        return False  # whoever loads it says what is wrong
    named = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    function = next(named, None)
    if function is None:
        return False
    positional = [*function.args.posonlyargs, *function.args.args]
    required = {argument.arg for argument in positional[: len(positional) - len(function.args.defaults)]}
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    trains = any(isinstance(call, ast.Attribute) and call.attr == "backward" for call in calls)
    return trains and bool(required) and required.isdisjoint(settings)
