"""Fuses every architecture that transformers lists, at a tiny size, and compares peaks, members and kernels' formulas.

    python -m benchmarks.fuse [--only NAME] [--shard 3/8] [--resume FILE] [--seconds 300] [--compiled] [--inductor]

Each is captured, planned, fused and planned again, for inference and for a training step (families and sizes as of
`benchmarks.families`). A row is `fused` where the stack is not larger than before, where the program of fused
operators has the unfused one's bits when members run one by one, and where each group's formula, as Inductor is
given it, is near its members on random numbers. With `--compiled` kernels are compiled too, and the fused run is
held against the unfused one; with `--inductor` so is a run of the module that Inductor has compiled, and a row is
`further` where ours differs by more than twice what that does, and by more than 1e-6. `refused` are programs that are
not captured, or do not run on random inputs; all else is a fault, and the program exits with 1. No seconds are
asserted: `--seconds` ends what hangs.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.families import BATCH, MODES, Row, families, rows_of_process, run_resumed, small_family
from benchmarks.opdb import shard
from tmmu.torch_private import FakeTensor

FAULTS: Final = ("higher peak", "other bits", "other formula", "other run", "further", "exception", "crash", "hang")
ROUNDING: Final = 1e-6
"""Share of the largest magnitude of a tensor; of all results, below which a tensor is nothing but rounding."""
OUTCOMES: Final = ("fused", "nothing to fuse", "refused", *FAULTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--resume", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=300, metavar="S")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--inductor", action="store_true", help="implies --compiled")
    options = parser.parse_args()
    runs = ("fused",) * (options.compiled or options.inductor) + ("inductor",) * options.inductor
    index, count = options.shard
    names = [name for name in families() if options.only in ("", name)][index - 1 :: count]
    rows = run(names, seconds=options.seconds, resume=options.resume, runs=runs)
    print("\n".join(summary(rows)))
    return int(any(row["outcome"] in FAULTS for row in rows))


def run(
    names: Sequence[str], *, seconds: float = 300, resume: Path | None = None, runs: Sequence[str] = ()
) -> list[Row]:
    """Two rows for each family, those that ``resume`` has included; ``runs``: which kernels run."""
    models = families()
    return run_resumed(
        names, lambda name: rows_of_process(_send_rows, name, models[name], runs, seconds=seconds), resume
    )


def _send_rows(sender: Connection, name: str, model: str, runs: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for mode in MODES:
        sender.send({"family": name, "mode": mode, **_row(name, model, mode, runs)})


def _row(name: str, model: str, mode: str, runs: Sequence[str]) -> dict[str, Any]:
    from benchmarks.subject import Subject, Workload  # noqa: PLC0415 - in the family's process
    from tmmu.errors import TmmuError  # noqa: PLC0415

    try:
        config, sequence = small_family(name)
        workload = Workload(
            model=model, config=config, training=mode == "training", batch=BATCH, sequence=sequence, dtype="float32"
        )
        subject = Subject(workload)
        _outputs(subject, subject.program)  # which also shows whether it runs on random inputs
    except Exception as error:  # noqa: BLE001 - whatever a class of configurations or a model raises
        return {"outcome": "refused", "reason": f"{type(error).__name__}: {error}"[:200]}
    try:
        return fused_row(subject, runs)
    except TmmuError as error:
        return {"outcome": "exception", "reason": str(error)[:300]}
    except Exception as error:  # noqa: BLE001 - that is the fault that is looked for
        return {"outcome": "exception", "reason": f"{type(error).__name__}: {error}"[:300]}


def fused_row(subject: Any, runs: Sequence[str] = ()) -> dict[str, Any]:
    """What fusing does to one program; ``runs``: ``fused``, its kernels run too, and ``inductor``, and Inductor's."""
    from tmmu.fusion.fuse_below import fuse_below  # noqa: PLC0415
    from tmmu.fusion.fused_operators import group_of, is_fused  # noqa: PLC0415
    from tmmu.fusion.kernel_forms import KernelForms  # noqa: PLC0415

    program = subject.program
    forms = KernelForms(None)
    fusion = fuse_below(program, forms.form_of, stack_bytes)
    fused = fusion.program
    groups = {
        group.digest: group for call in fused.calls if is_fused(call.operator) and (group := group_of(call.operator))
    }
    figures = {
        "ops": len(program.graph.ops), "left": len(fused.graph.ops), "kernels": len(groups), "cuts": fusion.cuts,
        "refused": len(forms.refused), "stack": stack_bytes(program.graph),
        "fused_stack": stack_bytes(fused.graph),
    }  # fmt: skip
    if not groups:
        return {"outcome": "nothing to fuse", **figures}
    if figures["fused_stack"] > figures["stack"]:
        return {"outcome": "higher peak", **figures}
    if not _same_bits(subject, fused):
        return {"outcome": "other bits", **figures}
    for group in groups.values():
        distance = formula_distance(group)
        if distance is not None and distance > 1e-5:
            return {"outcome": "other formula", "reason": f"{group.name}: {distance:.1e}", **figures}
        figures["distance"] = max(figures.get("distance", 0.0), distance or 0.0)
    if "fused" in runs:
        figures["unfused"], figures["run"] = _compiled_distance(subject, fused, list(groups.values()))
    if "inductor" in runs and (distance := _inductor_distance(subject)) is not None:
        figures["inductor"] = distance
    return {"outcome": _outcome_of_runs(figures), **figures}


def _outcome_of_runs(figures: Mapping[str, Any]) -> str:
    if figures.get("run", 0.0) > 1e-4:
        return "other run"
    is_further = "inductor" in figures and figures["run"] > max(2 * figures["inductor"], ROUNDING)
    return "further" if is_further else "fused"


def stack_bytes(graph: Any) -> int:
    """Bytes of the stack, planned as the subject's program is."""
    from tmmu.ir.plan import segment_bytes  # noqa: PLC0415
    from tmmu.planner.arenas import default_arenas  # noqa: PLC0415
    from tmmu.planner.prepare import prepare_memory  # noqa: PLC0415
    from tmmu.planner.token import token_from_seed  # noqa: PLC0415

    training = "backward" in graph.ops.stage
    mode, preset = ("backward", "train_full") if training else ("inference", "inference")
    plan = prepare_memory(graph, mode=mode, preset=preset, token=token_from_seed(0), arenas=default_arenas())
    return segment_bytes(plan.arenas, "stack")


def _same_bits(subject: Any, fused: Any) -> bool:
    """Whether members one by one give what the program gives."""
    from tmmu.runtime.memory.slab import has_same_bits  # noqa: PLC0415

    return all(map(has_same_bits, _outputs(subject, subject.program), _outputs(subject, fused)))


def _outputs(subject: Any, program: Any) -> list[torch.Tensor]:
    """Of a run without a plan."""
    from tmmu.runtime.compare.reference import ReferenceExecutor  # noqa: PLC0415

    executor = ReferenceExecutor(program, subject.weights)
    torch.manual_seed(3)
    executor.run(program.graph.ops.ids, subject.inputs(0))
    return [executor.value(value).clone() for value in program.graph.outputs]


def formula_distance(group: Any) -> float | None:
    """By how much the formula of a group differs from its members; ``None`` where these take no random numbers."""
    from tmmu.fusion.functional_form import functional_form  # noqa: PLC0415
    from tmmu.fusion.group import dtype_of, run_members  # noqa: PLC0415
    from tmmu.fusion.window_views import memory_order  # noqa: PLC0415
    from tmmu.runtime.steps.fused_trial import differs_by  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    arguments = []
    for base in (*group.reads, *group.changed):
        window = group.bases[base].window
        tensor = torch.empty_strided(window.shape, window.stride, dtype=dtype_of(window))
        flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
        if tensor.is_floating_point():
            flat.copy_(torch.randn(flat.shape, generator=generator))
        elif tensor.dtype == torch.bool:
            flat.copy_(torch.rand(flat.shape, generator=generator) > 0.5)
        else:
            flat.copy_(torch.arange(flat.numel()))
        arguments.append(tensor)
    copies = [tensor.clone() for tensor in arguments]
    split = len(group.reads)
    try:
        expected = run_members(group, copies[:split], copies[split:])
    except (IndexError, RuntimeError):
        return None
    results = functional_form(group)(*arguments)
    distances = [differs_by(a, b) for a, b in zip(arguments[split:], copies[split:], strict=True)]
    for base, result, right in zip(group.results, results, expected, strict=True):
        window = group.bases[base].result
        distances.append(differs_by(result, right.permute(memory_order(window.shape, window.stride)).contiguous()))
    return max(distances, default=0.0)


def _compiled_distance(subject: Any, fused: Any, groups: Sequence[Any]) -> tuple[int, float]:
    """(fused ops that run their members, by how much results of a run in the plan differ from the members')."""
    from tmmu.fusion.kernel_forms import KernelForms  # noqa: PLC0415
    from tmmu.fusion.kernel_library import load_kernels, load_sequence_operator  # noqa: PLC0415
    from tmmu.planner.arenas import default_arenas  # noqa: PLC0415
    from tmmu.planner.prepare import prepare_memory  # noqa: PLC0415
    from tmmu.planner.token import token_from_seed  # noqa: PLC0415
    from tmmu.runtime.compare.reference import ReferenceExecutor  # noqa: PLC0415
    from tmmu.runtime.execute.bind import bind  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        load_sequence_operator(Path(folder))
        forms = {group.name: form for group in groups if (form := KernelForms(None).form_of(group)) is not None}
        kernels, _ = load_kernels(groups, forms, Path(folder))
    training = "backward" in fused.graph.ops.stage
    mode, preset = ("backward", "train_full") if training else ("inference", "inference")
    token = token_from_seed(0)
    plan = prepare_memory(fused.graph, mode=mode, preset=preset, token=token, arenas=default_arenas())
    executor = bind(fused, plan, token=token, weights=subject.weights, kernels=kernels)
    reference = ReferenceExecutor(fused, subject.weights)
    inputs = subject.inputs(0)
    torch.manual_seed(3)
    outputs = executor.run(inputs)
    torch.manual_seed(3)
    reference.run(fused.graph.ops.ids, inputs)
    unfused = sum("tmmu_fused" in step.name and step.code is step.fallback for step in executor.bound.steps)
    return unfused, furthest(outputs, [reference.value(value) for value in executor.outputs])


def _inductor_distance(subject: Any) -> float | None:
    """By how much results of the module differ where Inductor has compiled it, with eager's draws.

    ``None`` where they cannot be compared: a result that eager gives twice is two of Inductor's, and a module that
    keeps tensors of a trace gives these.
    """
    inputs, module = subject.inputs(0), subject.module
    torch.manual_seed(3)
    expected = [tensor.clone() for tensor in subject.call(inputs)]
    subject.module = torch.compile(module, options={"fallback_random": True})
    torch.manual_seed(3)
    results = subject.call(inputs)
    subject.module = module
    is_compared = len(results) == len(expected) and not any(isinstance(t, FakeTensor) for t in (*results, *expected))
    return furthest(results, expected) if is_compared else None


def furthest(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest magnitude in its tensor; without tensors that are rounding."""
    from tmmu.runtime.steps.fused_trial import differs_by  # noqa: PLC0415

    sizes = [tensor.abs().max().item() if tensor.is_floating_point() else 1.0 for tensor in expected]
    least = ROUNDING * max(sizes, default=0.0)
    rows = zip(results, expected, sizes, strict=True)
    return max((differs_by(result, tensor) for result, tensor, size in rows if not size <= least), default=0.0)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Counts of each outcome by mode, sums of ops and bytes, then a line for each fault."""
    counts = Counter((row["mode"], row["outcome"]) for row in rows)
    yield f"{len({row['family'] for row in rows})} families, {len(rows)} programs"
    yield f"{'outcome':16}" + "".join(f"{mode:>11}" for mode in MODES)
    for outcome in OUTCOMES:
        if any(counts[mode, outcome] for mode in MODES):
            yield f"{outcome:16}" + "".join(f"{counts[mode, outcome]:11}" for mode in MODES)
    for mode in MODES:
        fused = [row for row in rows if row["mode"] == mode and row["outcome"] == "fused"]
        if fused:
            ops, left = sum(row["ops"] for row in fused), sum(row["left"] for row in fused)
            lower = [row["fused_stack"] / row["stack"] for row in fused if row["fused_stack"] < row["stack"]]
            cuts, distance = sum(row["cuts"] > 0 for row in fused), max(row.get("distance", 0.0) for row in fused)
            yield (
                f"{mode}: {ops} ops became {left}; stack lower in {len(lower)} of {len(fused)}"
                + (f", at the least {min(lower):.2f} of it" if lower else "")
                + f"; regions cut for the peak in {cuts}; formulas differ by {distance:.1e} at most"
            )
            ran = [row for row in fused if "run" in row]
            if ran:
                most, members = max(row["run"] for row in ran), sum(row["unfused"] for row in ran)
                yield f"{mode}: runs differ by {most:.1e} at most; {members} fused ops ran their members"
            beside = [row for row in ran if "inductor" in row]
            if beside:
                closer = sum(row["run"] <= row["inductor"] for row in beside)
                most = max(row["inductor"] for row in beside)
                yield f"{mode}: Inductor's by {most:.1e} at most; ours by no more than its in {closer} of {len(beside)}"
    for row in rows:
        if row["outcome"] in FAULTS:
            runs = " beside ".join(f"{row[name]:.1e}" for name in ("run", "inductor") if name in row)
            yield f"{row['family']} {row['mode']}: {row['outcome']}: {row.get('reason', runs)}"


if __name__ == "__main__":
    sys.exit(main())
