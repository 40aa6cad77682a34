"""Which texts a compiler refuses, found in few runs of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tmmu.fusion import kernel_library
from tmmu.fusion.kernel_library import MAX_TRIALS, NoCompiler, RefusedSource, find_refused


class Compiler:
    """Refuses a source with a text of ``bad`` in it, names those of ``named``, and counts its runs."""

    def __init__(self, bad: Sequence[str], named: Sequence[str] = (), *, works: bool = True) -> None:
        self.bad, self.named, self.works, self.runs = bad, named, works, 0

    def fault(self, texts: Mapping[str, Any]) -> RefusedSource | None:
        found = [digest for digest in texts if digest in self.bad]
        named = tuple(digest for digest in texts if digest in self.named)
        return RefusedSource(f"error in {found}", named) if found or not self.works else None

    def compile(self, texts: Mapping[str, Any]) -> None:
        self.runs += 1
        fault = self.fault(texts)
        if fault is not None:
            raise fault

    def refused(self, texts: Mapping[str, Any]) -> dict[str, str]:
        error = self.fault(texts)
        assert error is not None
        return find_refused(texts, self.compile, error)


TEXTS: dict[str, Any] = {f"{number:020x}": number for number in range(40)}
FIRST, MIDDLE, LAST = (list(TEXTS)[place] for place in (0, 20, 39))


@pytest.mark.parametrize(
    ("bad", "named", "most"),
    [
        ((MIDDLE,), (MIDDLE,), 3),
        ((MIDDLE,), (), 13),
        ((FIRST, LAST), (FIRST, LAST), 4),
        ((FIRST,), (FIRST, LAST), 4),
        ((MIDDLE, LAST), (MIDDLE,), 16),
    ],
)
def test_exactly_the_texts_that_are_refused_are_found(bad: Any, named: Any, most: int) -> None:
    compiler = Compiler(bad, named)
    assert compiler.refused(TEXTS) == {digest: f"error in {[digest]}" for digest in bad}
    assert compiler.runs <= most <= MAX_TRIALS


def test_where_nothing_compiles_no_text_is_at_fault() -> None:
    compiler = Compiler((), works=False)
    with pytest.raises(RefusedSource, match="error in"):
        compiler.refused(TEXTS)
    assert compiler.runs == 1


def test_the_search_ends() -> None:
    compiler = Compiler(list(TEXTS)[::3])
    with pytest.raises(RefusedSource):
        compiler.refused(TEXTS)
    assert compiler.runs == MAX_TRIALS


def test_a_compiler_says_which_kernels_it_refuses_unless_something_ended_it() -> None:
    said = [
        f"kernel_{LAST}: In function 'int kernel_{LAST}(const float*)':",
        f"kernel_{FIRST}:3:8: error: 'x' was not declared in this scope",
    ]
    fault = kernel_library._failure(1, said)
    assert isinstance(fault, RefusedSource)
    assert (str(fault), fault.digests) == (said[1], (FIRST,))
    template = kernel_library._failure(1, [f"kernel_{LAST}:9:4:   required from here", "vec.h:1:1: error: no type"])
    assert isinstance(template, RefusedSource)
    assert template.digests == (LAST,)
    for code, line in ((-9, ""), (1, "g++: fatal error: Killed signal terminated program cc1plus")):
        ended = kernel_library._failure(code, [line])
        assert isinstance(ended, NoCompiler)
        assert not isinstance(ended, RefusedSource), "no text is at fault for it"
