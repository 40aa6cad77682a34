"""The picture of the README: the memory of a training step as an SVG file, made of its plan.

    python -m tools.picture docs/images/gpt2-training.svg

Every buffer of the stack is a rectangle: its span in time, its bytes as planned. The line is what the model holds when
it is run as it is. The same plan gives the same file, byte for byte.
"""

import html
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 960, 420
LEFT, TOP, BOTTOM = 64, 64, 40
COLORS = {"activation": "#4c78a8", "gradient": "#e4823b", "scratch": "#8a8f98"}
OTHER = "#72b7b2"
GIB = 2**30
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-size:17px;font-weight:600}.a{stroke:#999}.g{fill:#fff}"
    ".e{fill:none;stroke:#111;stroke-width:1.5}.b{stroke:#fff;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{fill:#0d1117}.e{stroke:#fff}.b{stroke:#0d1117}}"
)


@dataclass(frozen=True)
class Scale:
    """From positions of the plan and bytes to the picture."""

    positions: int
    bytes: int

    def x(self, position: float) -> float:
        """Where a position lies, in pixels."""
        return round(LEFT + (WIDTH - LEFT - 12) * position / self.positions, 1)

    def y(self, size: float) -> float:
        """Where so many bytes lie, in pixels."""
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * size / self.bytes, 1)


def picture(plan, title: str) -> str:
    """The SVG of a ``tmmu.MemoryPlan``."""
    scale = Scale(len(plan.plan.order), max(plan.stack, plan.eager.stack_bytes))
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect class="g" width="{WIDTH}" height="{HEIGHT}"/>',
        *headings(plan, title),
        *rectangles(plan, scale),
        *axes(scale),
        eager_line(plan, scale),
        "</svg>",
    )
    return "\n".join(parts) + "\n"


def headings(plan, title: str) -> Iterator[str]:
    """The title, both figures, and what the colours mean."""
    yield f'<text class="t" x="{LEFT}" y="24">{html.escape(title)}</text>'
    yield (
        f'<text x="{LEFT}" y="46">inside the plan {plan.total / GIB:.1f} GiB, of which activations and gradients '
        f"{plan.stack / GIB:.1f} GiB; run as it is {plan.eager.total_bytes / GIB:.1f} GiB</text>"
    )
    marks = (("activation", COLORS["activation"]), ("gradient", COLORS["gradient"]), ("run as it is", "none"))
    for index, (name, color) in enumerate(marks):
        x, y = LEFT + 260 + 120 * index, HEIGHT - 26
        mark = f'<path class="e" d="M{x} {y + 6}h12"/>' if color == "none" else ""
        yield mark or f'<rect x="{x}" y="{y}" width="12" height="12" fill="{color}"/>'
        yield f'<text x="{x + 17}" y="{y + 10}">{name}</text>'


def rectangles(plan, scale: Scale) -> Iterator[str]:
    """One rectangle for each buffer of the stack, the largest first."""
    from tmmu.export.buffer_rows import buffer_rows  # noqa: PLC0415

    stack = [row for row in buffer_rows(plan.plan, plan.graph) if row.arena in ("activations", "gradients")]
    for row in sorted(stack, key=lambda row: (-row.padded_bytes, row.id)):
        x, top = scale.x(row.birth), scale.y(row.offset + row.padded_bytes)
        width, height = round(scale.x(row.death) - x, 1), round(scale.y(row.offset) - top, 1)
        if height >= 0.2:
            color = COLORS.get(row.role, OTHER)
            edge = ' class="b"' if height >= 2 else ""
            yield f'<rect{edge} x="{x}" y="{top}" width="{width}" height="{height}" fill="{color}"/>'


def axes(scale: Scale) -> Iterator[str]:
    """Bytes at the left, time below."""
    base = HEIGHT - BOTTOM
    yield f'<path class="a" d="M{LEFT} {TOP}V{base}H{WIDTH - 12}" fill="none"/>'
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50) if step * GIB * 6 >= scale.bytes)
    for mark in range(int(scale.bytes / (step * GIB)) + 1):
        y = scale.y(mark * step * GIB)
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{mark * step:g} GiB</text>'
    yield f'<text x="{LEFT}" y="{base + 24}">forward, loss, backward, update</text>'
    yield f'<text x="{WIDTH - 12}" y="{base + 24}" text-anchor="end">{scale.positions} operators</text>'


def eager_line(plan, scale: Scale) -> str:
    """What the model holds as it is, over eager's own calls, which are stretched to the plan's width."""
    levels = plan.timeline().eager
    stretch = scale.positions / len(levels)
    points, before = [], -1
    for call, size in enumerate(levels):
        if size != before:
            points.append(f"{scale.x(call * stretch)} {scale.y(size)}")
            before = size
    return f'<polyline class="e" points="{",".join(points)}"/>'


def readme_picture() -> str:
    """The training step that the README plans, as a picture."""
    sys.path.insert(0, str(ROOT / "examples"))
    import torch  # noqa: PLC0415
    from gpt2 import inputs, loss, model  # noqa: PLC0415

    import tmmu  # noqa: PLC0415

    with torch.device("meta"):
        network, batch = model(), inputs(batch=8)
        optimizer = torch.optim.AdamW(network.parameters())

    def step(ids):
        optimizer.zero_grad()
        loss(network, ids).backward()
        optimizer.step()

    return picture(tmmu.plan(step, batch[0]), "GPT-2, 124M parameters: a training step, 8 x 1024 tokens, AdamW")


def main() -> None:
    """Write the file that is named."""
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(readme_picture())


if __name__ == "__main__":
    main()
