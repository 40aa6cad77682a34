"""A Triton kernel as Inductor writes it, without its decorator, and the blocks and grid in which it is launched.

The decorator would time several configurations and take the fastest. Here one is fixed by rules that look at lengths
alone: the same on every machine. Blocks are powers of two of at most what the generator takes for the largest, by which
it leaves masks out.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.fusion.call_form import NotOneKernel

POINTWISE, REDUCTION, PERSISTENT = "pointwise", "reduction", "persistent_reduction"
LONGEST_BLOCK: Final = 1024
"""Elements of a result that one program of a pointwise kernel makes."""
TILE: Final = 32
"""The sides of a block of two axes."""
ROW_BLOCK: Final = 2048
"""Elements that one program of a reduction has at once."""
OUTER_ROWS: Final = 16
"""Rows of those, where what is summed lies across rows: the rest are columns, read side by side."""
WARP_ELEMENTS: Final = 256
"""Elements that a warp has, of 32 lanes."""
MOST_WARPS: Final = 8
GRID_LIMIT: Final = 65535
"""Programs along the second and third axis of a grid."""
_AXES: Final = {"xnumel": "XBLOCK", "ynumel": "YBLOCK", "r0_numel": "R0_BLOCK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchText:
    """One kernel: its function and those that it calls, as Python that ``triton.jit`` takes.

    ``pointers`` and ``numbers`` are the names of its arguments, in their order, ``blocks`` of its constants; those that
    it sets itself are ``fixed``. ``heuristic`` and ``grid_type`` are what its decorator said; ``is_outer``: whether
    what is summed lies across rows.
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    numbers: tuple[str, ...]
    blocks: tuple[str, ...]
    fixed: tuple[tuple[str, int], ...]
    heuristic: str
    grid_type: str
    is_outer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How a kernel is launched: the value of each block, programs along three axes, warps of each program."""

    blocks: tuple[tuple[str, int], ...]
    grid: tuple[int, int, int]
    warps: int


def parse_launch(source: str, suffix: str) -> LaunchText:
    """The kernel of a generated source, whose functions are renamed to end in ``suffix``. Errors: ``NotOneKernel``."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    kernels = [node for node in functions if _heuristic_of(node) is not None]
    if len(kernels) != 1 or "atomic" in re.sub(r"'atomic_add_found': False", "", source):
        raise NotOneKernel("a Triton source that is no plain kernel")
    (kernel,) = kernels
    decorator = _heuristic_of(kernel)
    assert decorator is not None
    options = {keyword.arg: keyword.value for keyword in decorator.keywords}
    arguments = kernel.args.args
    constants = tuple(each.arg for each in arguments if each.annotation is not None)
    plain = tuple(each.arg for each in arguments if each.annotation is None)
    lines = source.splitlines()
    bodies = ["\n".join(("@triton.jit", *lines[node.lineno - 1 : node.end_lineno])) for node in functions]
    return LaunchText(
        name=f"{kernel.name}_{suffix}",
        text=_rename_functions("\n\n\n".join(bodies), [node.name for node in functions], suffix),
        pointers=tuple(name for name in plain if "_ptr" in name),
        numbers=tuple(name for name in plain if "_ptr" not in name),
        blocks=constants,
        fixed=tuple(_fixed_blocks(kernel)),
        heuristic=ast.unparse(decorator.func).partition(".")[2],
        grid_type=_grid_type(options.get("inductor_meta")),
        is_outer="OUTER" in ast.unparse(options["reduction_hint"]) if "reduction_hint" in options else False,
    )


def _heuristic_of(function: ast.FunctionDef) -> ast.Call | None:
    """The decorator that says how a kernel would be timed."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).startswith("triton_heuristics."):
            return decorator
    return None


def _fixed_blocks(kernel: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    for line in kernel.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Constant):
            name, number = ast.unparse(line.target), line.value.value
            if name in _AXES.values() and isinstance(number, int):
                yield name, number


def _rename_functions(text: str, names: Sequence[str], suffix: str) -> str:
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}\b", f"{name}_{suffix}", text)
    return text


def _grid_type(meta: ast.expr | None) -> str:
    if isinstance(meta, ast.Dict):
        for key, value in zip(meta.keys, meta.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "grid_type" and isinstance(value, ast.Constant):
                return str(value.value)
    raise NotOneKernel("a kernel without a grid")


def launch_config(text: LaunchText, numbers: Mapping[str, int]) -> LaunchConfig:
    """How a kernel is launched on so many elements along each axis. Errors: ``NotOneKernel``."""
    if set(numbers) - set(_AXES):
        raise NotOneKernel(f"a kernel of other numbers: {', '.join(sorted(set(numbers) - set(_AXES)))}")
    known = {_AXES[name]: number for name, number in numbers.items()}
    if text.heuristic == POINTWISE:
        blocks = _pointwise_blocks(known)
    elif text.heuristic == PERSISTENT:
        blocks = _persistent_blocks(known)
    elif text.heuristic == REDUCTION:
        blocks = _reduction_blocks(known, is_outer=text.is_outer)
    else:
        raise NotOneKernel(f"a kernel of another kind: {text.heuristic}")
    blocks |= dict(text.fixed)
    unknown = [name for name in text.blocks if name not in blocks]
    if unknown:
        raise NotOneKernel(f"a kernel of other blocks: {', '.join(unknown)}")
    elements = 1
    for block in blocks.values():
        elements *= block
    return LaunchConfig(
        blocks=tuple((name, blocks[name]) for name in text.blocks),
        grid=_grid(text.grid_type, known, blocks),
        warps=max(1, min(MOST_WARPS, elements // WARP_ELEMENTS)),
    )


def _pointwise_blocks(known: Mapping[str, int]) -> dict[str, int]:
    longest = LONGEST_BLOCK if len(known) == 1 else TILE
    return {name: min(longest, _power_of_two(number)) for name, number in known.items()}


def _persistent_blocks(known: Mapping[str, int]) -> dict[str, int]:
    """A program has whole rows: one, or as many short ones as it has room for."""
    row = _power_of_two(known["R0_BLOCK"])
    return {"XBLOCK": max(1, min(_power_of_two(known["XBLOCK"]), ROW_BLOCK // row)), "R0_BLOCK": row}


def _reduction_blocks(known: Mapping[str, int], *, is_outer: bool) -> dict[str, int]:
    """A program goes through its rows a block at a time."""
    row = min(OUTER_ROWS if is_outer else ROW_BLOCK, _power_of_two(known["R0_BLOCK"]))
    return {"XBLOCK": max(1, min(_power_of_two(known["XBLOCK"]), ROW_BLOCK // row)), "R0_BLOCK": row}


def _grid(grid_type: str, known: Mapping[str, int], blocks: Mapping[str, int]) -> tuple[int, int, int]:
    x = -(-known["XBLOCK"] // blocks["XBLOCK"])
    if grid_type == "Grid1D":
        return x, 1, 1
    y = -(-known["YBLOCK"] // blocks["YBLOCK"]) if "YBLOCK" in known else 0
    if grid_type == "Grid2D" and 0 < y <= GRID_LIMIT:
        return x, y, 1
    if grid_type == "Grid2DWithYZOverflow" and y:
        z = -(-y // GRID_LIMIT)
        return x, -(-y // z), z
    raise NotOneKernel(f"a kernel of another grid: {grid_type}")


def _power_of_two(number: int) -> int:
    """The least that is no less."""
    return 1 << max(0, number - 1).bit_length()
