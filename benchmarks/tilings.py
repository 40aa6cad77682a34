"""Packing of tilings with a known optimum: ``python -m benchmarks.tilings [--items N ...] [--seeds K] [--nodes N]``.

A rectangle of time x bytes is cut at random, by full cuts (``guillotine``) or into pinwheels of five (``pinwheel``),
with few or many moments to cut at: its height is the least peak. Per number of items: peak over height and seconds of
each seed, then median and worst. Exits 1 if the worst is above the aim.
"""

import argparse
import random
import statistics
import sys
import time
from typing import Final, TypeAlias

from tests.problems import random_problem
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.pack.solve import pack

Rectangle: TypeAlias = tuple[int, int, int, int]
"""Birth, death, lowest and highest byte."""
HEIGHT: Final = 1 << 20
MOMENTS: Final = (100, 300, 10_000)
AIM: Final = {300: 1.05, 500: 1.05, 600: 1.08, 2_000: 1.15}
RANDOM_AIM: Final = {5_000: 1.05, 20_000: 1.06}


def tiling(items: int, seed: int) -> tuple[str, PackProblem]:
    """A tiling of the HEIGHT; kind and number of moments go by the seed."""
    rng = random.Random(seed * 1_000_003 + items)
    moments, is_pinwheel = MOMENTS[seed % len(MOMENTS)], bool(seed // len(MOMENTS) % 2)
    moments = max(moments, items // 4)
    rectangles = [(0, moments, 0, HEIGHT)]
    while len(rectangles) < items:
        index = max(range(len(rectangles)), key=lambda k: _area(rectangles[k]) * rng.random() ** 2)
        wanted = items - len(rectangles) + 1
        rectangles[index : index + 1] = cut(rectangles[index], rng, moments, pinwheel=is_pinwheel and wanted >= 5)
    rng.shuffle(rectangles)
    kind = "pinwheel" if is_pinwheel else "guillotine"
    return f"{kind}, {moments} moments", problem_of(rectangles)


def cut(rectangle: Rectangle, rng: random.Random, moments: int, *, pinwheel: bool) -> list[Rectangle]:
    """Two or five parts; the rectangle itself where it is too small for the cut that was drawn."""
    birth, death, low, high = rectangle
    if pinwheel and death - birth >= 4 and high - low >= 4 and rng.random() < 0.7:
        a, b = sorted(rng.sample(range(birth + 1, death), 2))
        c, d = sorted(rng.sample(range(low + 1, high), 2))
        return [(birth, b, low, c), (b, death, low, d), (a, death, d, high), (birth, a, c, high), (a, b, c, d)]
    width, height = (death - birth) / moments, (high - low) / HEIGHT
    if rng.random() < width / (width + height):
        if death - birth < 2:
            return [rectangle]
        at = rng.randint(birth + 1, death - 1)
        return [(birth, at, low, high), (at, death, low, high)]
    if high - low < 2:
        return [rectangle]
    at = rng.randint(low + 1, high - 1)
    return [(birth, death, low, at), (birth, death, at, high)]


def _area(rectangle: Rectangle) -> int:
    birth, death, low, high = rectangle
    return (death - birth) * (high - low)


def problem_of(rectangles: list[Rectangle]) -> PackProblem:
    """The rectangles without their offsets."""
    birth, death, low, high = zip(*rectangles, strict=True)
    size = tuple(top - bottom for bottom, top in zip(low, high, strict=True))
    count = len(rectangles)
    return PackProblem(size=size, birth=birth, death=death, alignment=(1,) * count, fixed=(-1,) * count)


def random_case(items: int, seed: int) -> tuple[str, PackProblem]:
    """Random spans, a hundred live at once."""
    plain = random_problem(items, items // 200 if items > 5_000 else 50, seed)
    alignment = (1,) * items
    problem = PackProblem(
        size=plain.size, birth=plain.birth, death=plain.death, alignment=alignment, fixed=(-1,) * items
    )
    return "random spans", problem


def show_case(name: str, problem: PackProblem, nodes: int | None) -> float:
    """Print one case; the peak over the bound, which is the height of a tiling."""
    start = time.perf_counter()
    packed = pack(problem, search_nodes=nodes)
    seconds = time.perf_counter() - start
    require_sound_packing(problem, packed.offset, peak=packed.peak, bound=packed.bound)
    ratio = packed.peak / packed.bound
    print(f"  {name:28} {ratio:.4f} {seconds:6.1f} s  {packed.method}{' proven' * packed.proven}", flush=True)
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="*", default=[300, 500, 600, 2_000])
    parser.add_argument("--random", type=int, nargs="*", default=[5_000, 20_000])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--nodes", type=int, help="as for tmmu pack")
    options = parser.parse_args()
    missed = 0
    groups = [(n, tiling, AIM) for n in options.items] + [(n, random_case, RANDOM_AIM) for n in options.random]
    for items, make, aims in groups:
        print(f"{items} items")
        ratios = [show_case(*make(items, seed), options.nodes) for seed in range(options.seeds)]
        aim = aims.get(items, float("inf"))
        missed += max(ratios) > aim
        print(f"  median {statistics.median(ratios):.4f}, worst {max(ratios):.4f}, aim {aim}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
