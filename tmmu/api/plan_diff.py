"""What one plan needs more than another, as Python sees it: what ``tmmu diff`` says."""

import html
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from tmmu.api.arguments import require_kind
from tmmu.codec.printable import printable
from tmmu.compare.diff import Change
from tmmu.errors import InvalidConfig
from tmmu.summary.diff_report import (
    DiffReport,
    EagerTotalsByTime,
    Figure,
    PeakCause,
    figures_over,
    parse_limit,
)
from tmmu.summary.diff_text import Section, headline, section_lines, sections


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """A comparison of two plans. ``str`` is the text of ``tmmu diff``, ``to_dict`` its JSON."""

    report: DiffReport

    def __post_init__(self) -> None:
        require_kind(self.report, DiffReport, "two plans to MemoryPlan.diff, which makes it")

    @property
    def is_same(self) -> bool:
        """Whether it is one plan, to the byte."""
        return self.report.same

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Bytes before and after: in total, of each segment, of its arenas, of the caller's inputs."""
        return self.report.figures

    @property
    def eager(self) -> EagerTotalsByTime:
        """Both models run as they are."""
        return self.report.eager

    @property
    def causes(self) -> tuple[PeakCause, ...]:
        """Changes at the peak of the stack by source line, operator and reason; those of the main line first."""
        return self.report.lines

    @property
    def persistent(self) -> tuple[Change, ...]:
        """Weights, constants and state that came, went, grew or shrank."""
        return self.report.kept

    def over(self, limit: str | int) -> tuple[str, ...]:
        """Which of total and stack, planned and eager, grew by more than ``"1%"``, ``"64MiB"`` or so many bytes.

        ``INVALID_CONFIG`` for another limit, a fraction such as ``0.01`` among them.
        """
        if not isinstance(limit, str) and (type(limit) is not int or limit < 0):
            raise InvalidConfig(
                f"{limit!r:.80} is no limit", fix='write a share or a size as text, "1%" or "64MiB", or bytes'
            )
        return tuple(figure.name for figure in figures_over(self.report, parse_limit(str(limit))))

    def to_dict(self) -> dict[str, object]:
        """As plain values, with the keys of ``tmmu diff --json``."""
        return asdict(self.report)

    def __str__(self) -> str:
        lines = (headline(self.report), *section_lines(sections(self.report)))
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        return f"<PlanDiff {printable(headline(self.report))}>"

    def _repr_html_(self) -> str:
        """Sentences and tables, for notebooks."""
        title = f"<p><b>{html.escape(headline(self.report))}</b></p>"
        return title + "".join(_section_html(sections(self.report)))


def _section_html(parts: Iterable[Section]) -> Iterator[str]:
    for section in parts:
        yield from (f"<p>{html.escape(sentence)}</p>" for sentence in section.sentences)
        if section.rows:
            head = _row_html("th", section.heading)
            yield f"<table>{head}{''.join(_row_html('td', row) for row in section.rows)}</table>"


def _row_html(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell.strip())}</{tag}>' for cell in cells)}</tr>"
