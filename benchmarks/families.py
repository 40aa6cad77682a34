"""Runs every architecture that transformers lists, at a tiny size, in its plan on the CPU, beside eager.

    python -m benchmarks.families [--only NAME] [--shard 3/8] [--resume FILE] [--seconds 120] [--reasons]

A family is a class of configurations with its first model among the tasks of ``TASKS``. Its sizes are the defaults of
the class made small by name (``benchmarks/small.py``). Each is captured, planned, judged, bound and run on two batches,
for inference and for a training step; compared are all bits of results, or of the loss and the gradients, with the
module's and, where those differ, with the captured program run call by call.

Outcomes: ``equal``; ``near``, the module's up to rounding while the captured program's bits are equal; ``refused`` with
a code; ``eager differs`` from itself, run twice with torch's generator at the same state; ``no model``, where the small
configuration or eager itself on it raises, or its results are not finite. Faults are ``other bits`` (unlike the
captured program), ``exception``, ``crash`` and ``hang``: the program exits with 1.

Each family runs in a process of its own. ``--resume FILE`` appends a JSON line for each that is done.
"""

import argparse
import json
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.opdb import shard

TASKS: Final = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION", "SPEECH_SEQ_2_SEQ", "CTC",
    "IMAGE_TEXT_TO_TEXT", "SEMANTIC_SEGMENTATION", "AUDIO_CLASSIFICATION", "DEPTH_ESTIMATION",
)  # fmt: skip
FAULTS: Final = ("other bits", "exception", "crash", "hang")
OUTCOMES: Final = ("equal", "near", "refused", "eager differs", "no model", *FAULTS)
MODES: Final = ("inference", "training")
NEAR: Final = 1e-4
"""The largest difference that is called near, as a fraction of the largest magnitude, in single precision."""
SEQUENCE: Final = 16
BATCH: Final = 2
Row = Mapping[str, Any]


def main() -> int:
    options = _options()
    index, count = options.shard
    names = [name for name in families() if options.only in ("", name)][index - 1 :: count]
    rows = run(names, seconds=options.seconds, resume=options.resume)
    print("\n".join(summary(rows, reasons=options.reasons)))
    return 1 if any(row["outcome"] in FAULTS for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="this family alone")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="each Nth family, from the Ith")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done in FILE, and go on from there")
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="longest time for one family (120)")
    parser.add_argument("--reasons", action="store_true", help="also list refusals, and families without a model")
    return parser.parse_args()


def families() -> dict[str, str]:
    """By the name of a family, its model's class: the first of the tasks that has one."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - seconds

    found: dict[str, str] = {}
    for task in TASKS:
        for name, model in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).items():
            found.setdefault(name, model if isinstance(model, str) else model[0])
    return dict(sorted(found.items()))


def run(names: Sequence[str], *, seconds: float = 120, resume: Path | None = None) -> list[Row]:
    """Two rows for each family, those that ``resume`` has included."""
    models = families()
    return run_resumed(names, lambda name: rows_of_process(_send_rows, name, models[name], seconds=seconds), resume)


def run_resumed(names: Sequence[str], rows_of: Callable[[str], list[Row]], resume: Path | None) -> list[Row]:
    """The rows of each name, in order; those that the file has are taken from there, the others added to it."""
    done = _kept(resume)
    for name in names:
        if name not in done:
            done[name] = rows_of(name)
            if resume is not None:
                with resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"family": name, "rows": done[name]}) + "\n")
    return [row for name in names for row in done[name]]


def _kept(resume: Path | None) -> dict[str, list[Row]]:
    """What the file has; a last line that was cut off is not one."""
    if resume is None or not resume.is_file():
        return {}
    lines = [line for line in resume.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    resume.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {record["family"]: record["rows"] for record in map(json.loads, lines)}


def rows_of_process(send_rows: Callable[..., None], name: str, model: str, *options: Any, seconds: float) -> list[Row]:
    """The rows of a family, made in a forked process, which has transformers loaded already."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_rows, args=(sender, name, model, *options))
    process.start()
    sender.close()
    rows: list[Row] = []
    outcome = "crash"
    try:
        while len(rows) < len(MODES):
            if not receiver.poll(seconds):
                outcome = "hang"
                break
            rows.append(receiver.recv())
    except EOFError:
        pass
    process.kill()
    process.join()
    lost = [{"family": name, "mode": mode, "outcome": outcome, "reason": model} for mode in MODES[len(rows) :]]
    return rows + lost


def _send_rows(sender: Connection, name: str, model: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for mode in MODES:
        outcome, reason = _outcome(name, model, training=mode == "training")
        sender.send({"family": name, "mode": mode, "outcome": outcome, "reason": " ".join(reason.split())[:300]})


def _outcome(name: str, model: str, *, training: bool) -> tuple[str, str]:
    """What came of one family in one mode, and why."""
    from benchmarks.subject import Subject, Workload  # noqa: PLC0415 - in the family's process
    from tmmu.errors import TmmuError  # noqa: PLC0415
    from tmmu.runtime.memory.slab import has_same_bits  # noqa: PLC0415

    def subject() -> Any:
        config, sequence = small_family(name)
        sizes = {"batch": BATCH, "sequence": sequence, "dtype": "float32"}
        return Subject(Workload(model=model, config=config, training=training, **sizes))

    try:
        runs = _eager_runs(subject())
    except Exception as error:  # noqa: BLE001 - whatever a class of configurations or a model raises
        return "no model", f"{type(error).__name__}: {error}"
    if not runs[0] or not all(tensor.isfinite().all() for tensor in runs[0] if tensor.is_floating_point()):
        return "no model", "results that are not finite, or none"
    if len(runs[0]) != len(runs[1]) or not all(map(has_same_bits, *runs)):
        return "eager differs", ""
    try:
        return _compared(subject())
    except TmmuError as error:
        return ("exception" if error.code == "INTERNAL" else "refused"), str(error)
    except Exception as error:  # noqa: BLE001 - that is the fault that is looked for
        return "exception", f"{type(error).__name__}: {error}"


def small_family(name: str) -> tuple[Any, int | None]:
    """The small configuration, and the length of its sequences where it takes tokens."""
    import transformers  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: PLC0415

    from benchmarks.small import small_sizes_of  # noqa: PLC0415

    kind = getattr(transformers, CONFIG_MAPPING_NAMES[name])
    config = kind(**small_sizes_of(kind, {}))
    text = config.get_text_config(decoder=True)
    return config, SEQUENCE if isinstance(getattr(text, "vocab_size", None), int) and not _hears(config) else None


def _hears(config: Any) -> bool:
    """Whether it takes a waveform, though it has a vocabulary."""
    return hasattr(config, "conv_dim") or hasattr(config, "num_conv_pos_embeddings")


def _eager_runs(subject: Any) -> list[list[torch.Tensor]]:
    """What eager gives for one batch, twice; the first call of a new model may be unlike those after it."""
    runs, inputs = [], subject.example_inputs()
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([tensor.clone() for tensor in subject.call(inputs)])
    return runs


def _compared(subject: Any) -> tuple[str, str]:
    """Two runs, on two batches, so that what the first leaves behind would show in the second."""
    from benchmarks.execute import count_differences  # noqa: PLC0415
    from tmmu.runtime.compare.reference import ReferenceExecutor  # noqa: PLC0415

    executor = subject.executor()
    reference = ReferenceExecutor(subject.program, subject.weights)
    rows = [count_differences(subject, executor, reference, subject.inputs(seed)) for seed in (0, 1)]
    from_program, from_module, distance = (max(column) for column in zip(*rows, strict=True))
    if from_program or distance > NEAR:
        what = f"{from_program} results unlike the captured program's, {from_module} unlike the module's"
        return "other bits", f"{what}, by {distance:.1e}"
    return ("near", f"{from_module} results by {distance:.1e}") if from_module else ("equal", "")


def summary(rows: Sequence[Row], *, reasons: bool = False) -> Iterator[str]:
    """Counts of each outcome by mode, then a line for each fault; on demand for each family that was not compared."""
    counts = Counter((row["mode"], row["outcome"]) for row in rows)
    yield f"{len({row['family'] for row in rows})} families, {len(rows)} runs"
    yield f"{'outcome':12}" + "".join(f"{mode:>11}" for mode in MODES)
    for outcome in OUTCOMES:
        if any(counts[mode, outcome] for mode in MODES):
            yield f"{outcome:12}" + "".join(f"{counts[mode, outcome]:11}" for mode in MODES)
    shown = OUTCOMES[1:] if reasons else FAULTS
    for row in sorted(rows, key=lambda row: (OUTCOMES.index(row["outcome"]), row["reason"])):
        if row["outcome"] in shown:
            yield f"{row['family']} {row['mode']}: {row['outcome']}: {row['reason']}"


if __name__ == "__main__":
    sys.exit(main())
