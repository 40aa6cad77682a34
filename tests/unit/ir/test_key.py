from itertools import permutations

from tmmu.ir.key import TEXT_LIMIT, Key, key_of, part_of

MODE, SEED, INPUTS = part_of("mode", "inference"), part_of("seed", 7), part_of("inputs", [["x", "float32", [1, 2]]])


def test_key_does_not_depend_on_the_order_of_parts() -> None:
    assert len({key_of(parts).digest for parts in permutations((MODE, SEED, INPUTS))}) == 1


def test_key_covers_every_part() -> None:
    whole = key_of((MODE, SEED, INPUTS))
    others = [whole.with_parts(part_of(name, "other")) for name in ("mode", "seed", "inputs", "more")]
    assert len({key.digest for key in (whole, *others)}) == 5
    assert key_of((MODE, SEED)).digest != whole.digest


def test_part_text_is_not_hashed() -> None:
    assert part_of("mode", "inference", "as usual").digest == MODE.digest
    assert key_of((part_of("mode", "inference", "as usual"),)).digest == key_of((MODE,)).digest


def test_part_digest_covers_the_name() -> None:
    assert part_of("a", "x").digest != part_of("b", "x").digest
    swapped = key_of((part_of("a", 1), part_of("b", 2))), key_of((part_of("a", 2), part_of("b", 1)))
    assert swapped[0].digest != swapped[1].digest


def test_part_digest_tells_types_apart() -> None:
    contents: list[object] = [1, "1", True, b"1", [1], ["1"], None, "None", [], "", b"", 0, False]
    assert len({part_of("x", content).digest for content in contents}) == len(contents)


def test_differences_name_the_parts() -> None:
    whole = key_of((MODE, SEED, INPUTS))
    assert whole.differences(whole) == ()
    assert whole.differences(whole.with_parts(part_of("mode", "forward"), part_of("arena", 1))) == ("arena", "mode")
    assert whole.differences(Key(())) == ("inputs", "mode", "seed")


def test_part_text_is_short() -> None:
    assert len(part_of("x", "y" * 1000).text) == TEXT_LIMIT
    assert part_of("x", 3).text == "3"
    assert part_of("x", b"\x01\xff").text == "01ff"


def test_parts_are_left_out_by_name() -> None:
    whole = key_of((MODE, SEED, INPUTS))
    assert whole.without_parts(("seed", "other")) == key_of((MODE, INPUTS))
    assert whole.without_parts(()) == whole
