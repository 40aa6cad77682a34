"""What a model is, without tracing it: a digest of all that decides the trace, or the reason why there is none."""

from dataclasses import dataclass
from types import CodeType
from typing import Final

from tmmu.ir.key import NoKey, Part
from tmmu.passes.capture.fingerprint import arrays, code, data, objects, tensors
from tmmu.passes.capture.fingerprint.flags import everywhere, flag_values
from tmmu.passes.capture.fingerprint.kernels import kernels
from tmmu.passes.capture.fingerprint.patches import patches
from tmmu.passes.capture.fingerprint.sink import SUBJECTS, Unnameable
from tmmu.passes.capture.fingerprint.tensors import ModelWalker, recording
from tmmu.passes.capture.fingerprint.walker import Rules
from tmmu.passes.capture.recorder import Recorder
from tmmu.passes.capture.trace import inputs_by_name
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload

RULES: Final = Rules(
    exact={**data.EXACT, **objects.EXACT, **code.EXACT, **tensors.EXACT},
    derived={**data.DERIVED, **objects.DERIVED, **arrays.DERIVED, **code.DERIVED, **tensors.DERIVED},
)
_INPUTS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Parts of a key, the installed libraries whose files decide the trace as well, and the code that is covered."""

    parts: tuple[Part, ...]
    libraries: tuple[str, ...]
    codes: tuple[CodeType, ...]


def fingerprint(workload: Workload, build: Recorder | None, *, training: bool) -> Fingerprint | NoKey:
    """The fingerprint of a workload: equal for two only if their traces are; ``NoKey`` where that cannot be promised.

    ``build`` is the recording under which the model was made on fake tensors. Linear in the objects that hang on the
    model.
    """
    w = ModelWalker(RULES, workload.folder, build, training=training)
    try:
        _walk(w, workload, build)
    except Unnameable as error:
        return NoKey(str(error))
    except RecursionError:
        return NoKey("objects are nested too deep")
    except Exception as error:  # noqa: BLE001 - whatever a user's object does when it is looked at
        return NoKey(f"looking at the model failed: {type(error).__name__}")
    return Fingerprint(parts=_parts(w, workload), libraries=tuple(sorted(w.libraries)), codes=tuple(w.codes))


def _walk(w: ModelWalker, workload: Workload, build: Recorder | None) -> None:
    w.emit(workload.name, int(w.training))
    with w.sink.about("flags"):
        w.items(flag_values().items())
        everywhere(w)
        kernels(w)
    if build is not None:
        recording(w, build)
    w.visit(workload.run)
    w.visit(workload.module)
    w.visit(workload.loss, "loss")
    with w.sink.about("inputs"):
        w.visit(workload.args, "inputs")
        w.items(workload.kwargs.items())
    for entry in workload.owned:
        w.emit(entry.role, entry.name)
        w.visit(entry.tensor, entry.name)
    if workload.folder:
        with w.sink.about("code"):
            code.files(w)
    patches(w)


def _parts(w: ModelWalker, workload: Workload) -> tuple[Part, ...]:
    """The whole decides; the subjects beside it explain."""
    texts = {
        "": f"{workload.name} {type(workload.run).__name__}",
        "modules": f"{w.modules} modules",
        "tensors": f"{w.tensors} tensors",
        "inputs": _inputs(workload),
    }
    named = {"": w.sink.whole()} | {subject: w.sink.subject(subject) for subject in SUBJECTS}
    return tuple(
        Part(f"model.{name}" if name else "model", digest, texts.get(name, "")) for name, digest in named.items()
    )


def _inputs(workload: Workload) -> str:
    given = named_tensors(inputs_by_name(workload))[:_INPUTS_SHOWN]
    shown = [f"{name} {str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]" for name, tensor in given]
    return ", ".join(shown)
