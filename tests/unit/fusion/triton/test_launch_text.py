"""A Triton kernel's text without its decorator, and the blocks and grid in which it is launched."""

import pytest

from tmmu.fusion.call_form import NotOneKernel
from tmmu.fusion.triton.launch_text import LaunchText, launch_config, parse_launch

SOURCE = """
import triton
import triton.language as tl
triton_helpers.set_driver_to_gpu()

@triton.jit
def _helper(x):
    return x + 1

@triton_heuristics.{heuristic}(
    size_hints={{'x': 64}},
    {hint}filename=__file__,
    triton_meta={{'device': DeviceProperties(type='cuda')}},
    inductor_meta={{'grid_type': '{grid}', 'autotune_hints': set(), 'atomic_add_found': False}},
)
@triton.jit
def triton_per_0(in_out_ptr0, in_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 6
    R0_BLOCK: tl.constexpr = 16
    x = _helper(tl.load(in_ptr0 + xnumel))
    tl.store(in_out_ptr0, x)
"""


def text_of(heuristic: str = "persistent_reduction", grid: str = "Grid1D", hint: str = "") -> str:
    return SOURCE.format(heuristic=heuristic, grid=grid, hint=hint)


def kernel(heuristic: str, *blocks: str, grid: str = "Grid1D", is_outer: bool = False) -> LaunchText:
    return LaunchText(
        name="k", text="", pointers=(), numbers=(), blocks=blocks, fixed=(), heuristic=heuristic, grid_type=grid,
        is_outer=is_outer,
    )  # fmt: skip


def test_the_decorator_goes_and_every_function_is_renamed() -> None:
    parsed = parse_launch(text_of(), "3")
    assert (parsed.name, parsed.heuristic, parsed.grid_type) == ("triton_per_0_3", "persistent_reduction", "Grid1D")
    assert (parsed.pointers, parsed.numbers) == (("in_out_ptr0", "in_ptr0"), ("xnumel", "r0_numel"))
    assert (parsed.blocks, parsed.fixed, parsed.is_outer) == (("XBLOCK",), (("R0_BLOCK", 16),), False)
    assert "heuristics" not in parsed.text
    assert "set_driver" not in parsed.text
    assert parsed.text.count("@triton.jit\ndef ") == 2
    assert "x = _helper_3(" in parsed.text


def test_what_is_summed_across_rows_is_known() -> None:
    assert parse_launch(text_of(hint="reduction_hint=ReductionHint.OUTER_TINY,\n    "), "0").is_outer
    assert not parse_launch(text_of(hint="reduction_hint=ReductionHint.INNER,\n    "), "0").is_outer


@pytest.mark.parametrize(
    "source",
    [
        "def kernel(in_ptr0): pass",
        text_of().replace("tl.store(", "tl.atomic_add("),
        text_of().replace("'atomic_add_found': False", "'atomic_add_found': True"),
        text_of().replace("'grid_type'", "'other'"),
        text_of() + text_of(),
    ],
)
def test_what_is_no_plain_kernel_is_refused(source: str) -> None:
    with pytest.raises(NotOneKernel):
        parse_launch(source, "0")


@pytest.mark.parametrize(
    ("text", "numbers", "blocks", "grid", "warps"),
    [
        (kernel("pointwise", "XBLOCK"), {"xnumel": 5000}, {"XBLOCK": 1024}, (5, 1, 1), 4),
        (kernel("pointwise", "XBLOCK"), {"xnumel": 3}, {"XBLOCK": 4}, (1, 1, 1), 1),
        (
            kernel("pointwise", "YBLOCK", "XBLOCK", grid="Grid2D"), {"ynumel": 100, "xnumel": 8},
            {"YBLOCK": 32, "XBLOCK": 8}, (1, 4, 1), 1,
        ),
        (
            kernel("pointwise", "YBLOCK", "XBLOCK", grid="Grid2DWithYZOverflow"),
            {"ynumel": 32 * 65536, "xnumel": 64}, {"YBLOCK": 32, "XBLOCK": 32}, (2, 32768, 2), 4,
        ),
        (kernel("persistent_reduction", "XBLOCK"), {"xnumel": 64, "r0_numel": 768}, {"XBLOCK": 2}, (32, 1, 1), 8),
        (kernel("persistent_reduction", "XBLOCK"), {"xnumel": 9, "r0_numel": 5000}, {"XBLOCK": 1}, (9, 1, 1), 8),
        (
            kernel("reduction", "XBLOCK", "R0_BLOCK"), {"xnumel": 7, "r0_numel": 50257},
            {"XBLOCK": 1, "R0_BLOCK": 2048}, (7, 1, 1), 8,
        ),
        (
            kernel("reduction", "XBLOCK", "R0_BLOCK", is_outer=True), {"xnumel": 768, "r0_numel": 8192},
            {"XBLOCK": 128, "R0_BLOCK": 16}, (6, 1, 1), 8,
        ),
    ],
)  # fmt: skip
def test_blocks_and_grid_are_those_of_the_lengths(
    text: LaunchText, numbers: dict[str, int], blocks: dict[str, int], grid: tuple[int, int, int], warps: int
) -> None:
    config = launch_config(text, numbers)
    assert (dict(config.blocks), config.grid, config.warps) == (blocks, grid, warps)


def test_a_block_that_a_kernel_sets_itself_decides_its_grid() -> None:
    text = parse_launch(text_of().replace("R0_BLOCK: tl.constexpr = 16", "XBLOCK: tl.constexpr = 1"), "0")
    assert launch_config(text, {"xnumel": 6, "r0_numel": 16}).grid == (6, 1, 1)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (kernel("pointwise", "XBLOCK"), {"xnumel": 4, "ks0": 2}),
        (kernel("pointwise", "XBLOCK", "ZBLOCK"), {"xnumel": 4}),
        (kernel("template", "XBLOCK"), {"xnumel": 4}),
        (kernel("pointwise", "XBLOCK", grid="Grid3D"), {"xnumel": 4}),
        (kernel("pointwise", "YBLOCK", "XBLOCK", grid="Grid2D"), {"ynumel": 32 * 65536, "xnumel": 64}),
    ],
)
def test_what_no_rule_knows_is_refused(text: LaunchText, numbers: dict[str, int]) -> None:
    with pytest.raises(NotOneKernel):
        launch_config(text, numbers)
