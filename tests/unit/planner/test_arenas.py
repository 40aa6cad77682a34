"""Arena settings: defaults, parsing, and the settings that are refused."""

from dataclasses import replace

import pytest

from tmmu.errors import AlignmentViolation, InvalidConfig, InvalidIrShapes
from tmmu.ir.graph import ROLES
from tmmu.planner.arenas import arena_of_role, check_arenas, default_arenas, parse_arenas, parse_size


def test_default_arenas() -> None:
    rows = [(s.name, s.segment, s.layout, s.alignment, s.capacity, s.page) for s in default_arenas()]
    assert rows == [
        ("parameters", "text", "sequential", 256, 0, 0),
        ("state", "data", "sequential", 256, 0, 0),
        ("activations", "stack", "joint", 256, 0, 0),
        ("gradients", "stack", "joint", 256, 0, 0),
    ]
    assert {s.alignment for s in default_arenas(64)} == {64}


def test_every_role_has_its_arena() -> None:
    assert [arena_of_role(role) for role in ROLES] == [
        "parameters",
        "parameters",
        None,
        "state",
        "activations",
        "gradients",
        "activations",
        None,
    ]
    with pytest.raises(InvalidIrShapes):
        arena_of_role("weight")


def test_arena_settings_are_merged_in_order() -> None:
    specs = parse_arenas(
        ["activations=capacity:8GiB,alignment:512,layout:slots", "state=page:2MiB", "state=capacity:1"]
    )
    assert (specs[2].capacity, specs[2].alignment, specs[2].layout) == (8 * 2**30, 512, "slots")
    assert (specs[1].page, specs[1].capacity, specs[1].alignment) == (2**21, 1, 256)
    assert specs[0] == default_arenas()[0]
    assert parse_arenas([], default_arenas(64)) == default_arenas(64)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "activations",
        "activations=",
        "heap=capacity:1",
        "activations=capacity",
        "activations=capacity:",
        "activations=capacity:-1",
        "activations=capacity:1.5",
        "activations=capacity:1.5B",
        "activations=capacity:1.GiB",
        "activations=capacity:.5GiB",
        "activations=capacity:1.5.1GiB",
        "activations=capacity:1XiB",
        "activations=capacity:99999999999GiB",
        "activations=capacity:1e",
        "activations=capacity:e9",
        "activations=capacity:1e-3",
        "activations=capacity:15e-1",
        "activations=capacity:1.55e1",
        "activations=capacity:1e100",
        f"activations=capacity:{'1' * 81}",
        "activations=segment:text",
        "activations=layout:best",
        "activations=capacity:1,,page:4096",
        "parameters=layout:packed",
        "state=layout:slots",
        "state=layout:joint",
        "gradients=alignment:512",
    ],
)
def test_malformed_arena_settings_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_arenas([text])


def test_arenas_of_one_slab_have_one_alignment() -> None:
    """Both changed, or one of them packed alone, is allowed."""
    with pytest.raises(InvalidConfig) as caught:
        parse_arenas(["activations=alignment:512"])
    assert caught.value.fields["alignments"] == [512, 256]
    assert "gradients=layout:packed" in caught.value.fix
    assert parse_arenas(["activations=alignment:512", "gradients=alignment:512"])[3].alignment == 512
    for alone in ("activations", "gradients"):
        assert parse_arenas(["activations=alignment:512", f"{alone}=layout:packed"])[2].alignment == 512


@pytest.mark.parametrize("text", ["alignment:0", "alignment:3", "alignment:96", "page:3000", "alignment:24KiB"])
def test_alignments_and_pages_are_powers_of_two(text: str) -> None:
    with pytest.raises(AlignmentViolation):
        parse_arenas([f"gradients={text}"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("4 KiB", 4096),
        ("2MB", 2_000_000),
        ("1.1KiB", 1126),
        ("0.5 tib", 2**39),
        ("5b", 5),
        ("16e9", 16 * 10**9),
        ("1.5E+3", 1500),
        ("1.5e0 kib", 1536),
        ("2e1GB", 20 * 10**9),
        ("4.0", 4),
    ],
)
def test_sizes_are_parsed_in_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("1e26", "'1e26' does not fit 64 bits", "less than 2^64 bytes"),
        (f"{2**64}", "does not fit 64 bits", "less than 2^64 bytes"),
        ("9" * 80, "does not fit 64 bits", "less than 2^64 bytes"),
        ("9" * 5000, "is not a size", "as 4096 or 16e9"),
        ("1e-3", "'1e-3' is not a size", "as 4096 or 16e9, or a number with KiB"),
        ("1.55e1", "'1.55e1' is no whole number of bytes", "drop what follows the point"),
    ],
)
def test_refusal_of_a_size_says_what_one_may_be(text: str, what: str, fix: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_size(text)
    assert what in caught.value.what
    assert len(caught.value.what) < 120
    assert fix in caught.value.fix


def test_arenas_are_four_in_plan_order_each_in_its_segment() -> None:
    specs = default_arenas()
    assert check_arenas(specs[::-1]) == specs
    wrong = [specs[:3], (*specs, specs[0]), (*specs[:3], specs[0]), (replace(specs[0], segment="data"), *specs[1:])]
    for arenas in wrong:
        with pytest.raises(InvalidConfig):
            check_arenas(arenas)
