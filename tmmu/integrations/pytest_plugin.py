"""The plugin of pytest: ``assert_fits`` and ``assert_no_growth`` as fixtures.

    def test_memory(assert_fits, assert_no_growth):
        assert_fits("24GB", model, inputs, loss="cross_entropy", optimizer="adamw")
        assert_no_growth("1%", step, batch)

pytest imports this file at every start, so it imports nothing but pytest: torch comes with the first plan.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from tmmu.api.memory_plan import MemoryPlan
    from tmmu.summary.diff_report import Limit


class FitAssertion(Protocol):
    """What ``assert_fits`` is."""

    def __call__(
        self,
        memory: str | int,
        target: Any,
        inputs: Any = None,
        *,
        run: Literal["eager", "planned"] = "eager",
        reserve: str | int = "1GiB",
        **plan_options: Any,
    ) -> "MemoryPlan":
        """The plan of ``target``: a model, a step, or a plan that is there; the test fails where it does not fit."""


class GrowthAssertion(Protocol):
    """What ``assert_no_growth`` is."""

    def __call__(
        self,
        limit: str | int,
        target: Any,
        inputs: Any = None,
        *,
        name: str = "",
        per_step: str | int = 0,
        **plan_options: Any,
    ) -> "MemoryPlan":
        """The plan of ``target``; the test fails where it needs more than the recorded one, by more than ``limit``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tmmu-update``."""
    parser.getgroup("tmmu").addoption(
        "--tmmu-update", action="store_true", help="Record the plans of assert_no_growth anew, and pass."
    )


@pytest.fixture
def assert_fits() -> FitAssertion:
    """Fails the test where a model or step does not fit a device: ``assert_fits("24GB", model, inputs)``.

    As ``tmmu.plan``, whose options it takes; returns the plan. ``reserve`` is kept free for what is not planned.
    """

    def check(
        memory: str | int,
        target: Any,
        inputs: Any = None,
        *,
        run: Literal["eager", "planned"] = "eager",
        reserve: str | int = "1GiB",
        **plan_options: Any,
    ) -> "MemoryPlan":
        __tracebackhide__ = True
        plan = _plan_of(target, inputs, plan_options)
        if not plan.fits(memory, run=run, reserve=reserve):
            pytest.fail(_misfit_text(plan, memory, run, reserve))
        return plan

    return check


@pytest.fixture
def assert_no_growth(request: pytest.FixtureRequest) -> GrowthAssertion:
    """Fails the test where a model or step needs more than recorded: ``assert_no_growth("1%", model, inputs)``.

    The recorded plan lies in ``memory_plans/`` beside the test file, under the names of class and test, or ``name``
    where a test has several; ``pytest --tmmu-update`` writes it. Total and stack of both runs count, each against what
    it was. A step fails too where each run leaves more than ``per_step`` bytes.
    """
    names: set[str] = set()

    def check(
        limit: str | int,
        target: Any,
        inputs: Any = None,
        *,
        name: str = "",
        per_step: str | int = 0,
        **plan_options: Any,
    ) -> "MemoryPlan":
        __tracebackhide__ = True
        from tmmu.integrations import recorded_plans as recorded  # noqa: PLC0415 - nothing at pytest's start

        growth, leak = recorded.parse_growth(limit), recorded.parse_growth(per_step)
        path = recorded.recorded_path(request.path, name or _test_name(request.node))
        if path.name in names:
            pytest.fail(f"{path.name} is recorded twice in this test: give each a name=...")
        names.add(path.name)
        plan = _plan_of(target, inputs, plan_options)
        text = _growth_text(plan, path, growth, leak, is_update=request.config.getoption("--tmmu-update"))
        if text:
            pytest.fail(text)
        return plan

    return check


def _test_name(item: pytest.Item) -> str:
    """Of a test in its file; tests of two classes may have one name."""
    classes = [part.name for part in item.listchain() if isinstance(part, pytest.Class)]
    return ".".join((*classes, item.name))


def _plan_of(target: Any, inputs: Any, plan_options: dict[str, Any]) -> "MemoryPlan":
    """The plan that is there, or the one that ``tmmu.plan`` makes; the test fails in a line where it refuses."""
    __tracebackhide__ = True
    import tmmu  # noqa: PLC0415 - the same

    if not isinstance(target, tmmu.MemoryPlan):
        try:
            return tmmu.plan(target, inputs, **plan_options)
        except tmmu.TmmuError as error:
            raise pytest.fail.Exception(str(error)) from None
    if inputs is not None or plan_options:
        raise TypeError("a plan that is there takes no inputs and no options of a plan")
    return target


def _growth_text(plan: "MemoryPlan", path: Path, limit: "Limit", leak: "Limit", *, is_update: bool) -> str:
    """Why the test fails; empty where it does not, or where the plan is recorded now."""
    from tmmu.errors import TmmuError  # noqa: PLC0415
    from tmmu.integrations.recorded_plans import require_steady  # noqa: PLC0415

    try:
        require_steady(plan, leak)
        return _compare_or_record(plan, path, limit, is_update=is_update)
    except TmmuError as error:
        difference = error.fields.get("difference")
        return f"{error}\n\n{difference}" if difference else str(error)


def _compare_or_record(plan: "MemoryPlan", path: Path, limit: "Limit", *, is_update: bool) -> str:
    import tmmu  # noqa: PLC0415
    from tmmu.errors import TmmuError  # noqa: PLC0415
    from tmmu.integrations.recorded_plans import require_no_growth  # noqa: PLC0415

    if is_update:
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            return f"cannot make the folder {path.parent} for recorded plans: {error.strerror}"
        plan.save(path)
    elif not path.exists():
        return f"no recorded plan {path.parent.name}/{path.name}: write it by pytest --tmmu-update, and commit it"
    else:
        try:
            before = tmmu.load(path)
        except TmmuError as error:
            return f"{error}; pytest --tmmu-update can record it again"
        require_no_growth(before, plan, limit, name=path.name)
    return ""


def _misfit_text(plan: "MemoryPlan", memory: str | int, run: str, reserve: str | int) -> str:
    """What is needed, and the largest that is live at the peak."""
    from tmmu.planner.arenas import readable_size  # noqa: PLC0415

    needed = plan.needed_bytes if run == "eager" else plan.total
    how = "as it is" if run == "eager" else "inside its plan"
    largest = "".join(
        f"\n  {readable_size(buffer.bytes)}: {buffer.op or buffer.name} {buffer.source}".rstrip()
        for buffer in plan.largest(5)
    )
    name = plan.graph.notes.name
    return f"{name} needs {readable_size(needed)} {how}, and {reserve} in reserve: not in {memory}{largest}"
