"""Why a model could not be traced, and what its author can do: one row per cause, chosen by facts and never by default.

A row looks at what was raised, during which activity, and through which code. The first that fits gives the hint;
where none fits, the activity does. A hint blames only what is known to be at fault: a fake kernel where its operator
has one of its author's, the inputs where they are what the step runs on.
"""

import re
from collections.abc import Callable
from typing import Final

from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.failures.failure import Failure
from tmmu.passes.capture.record.custom_operators import is_custom

Advice = Callable[[Failure], str]
BATCH_IN_PLACE_OF_LOADER: Final = (
    "a plan needs shapes, and no data: write one batch as the loader makes it, such as torch.empty(32, 3, 224, 224) "
    "and torch.randint(10, (32,))"
)
"""What stands for a loader, whose sampler and workers want numbers of a random generator."""


def advice_for(failure: Failure) -> str:
    """What the model's author can do about the failure."""
    for matches, advice in _CAUSES:
        if matches(failure):
            return advice if isinstance(advice, str) else advice(failure)
    return _advice_of_activity(failure)


def _advice_of_activity(failure: Failure) -> str:
    parts = [_ACTIVITIES[failure.activity]]
    if failure.operator is not None and failure.activity is Activity.FORWARD:
        parts.append(f"if eager runs it, torch's fake kernel of {failure.operator} is at fault")
    if failure.source:
        parts.append("see the line named")
    return "; ".join(parts)


_WEIGHT_CLASS: Final = re.compile(r"Creating a Parameter from an instance of type (\w+)")
"""What torch says of a weight that is a tensor of another class."""
_ACTIVITIES: Final = {
    Activity.IMPORT: "the file must run by itself, as python runs it",
    Activity.BUILDING: "correct what makes the model, or what --set gives it",
    Activity.CONFIGURATION: "give a configuration of which transformers makes a model",
    Activity.INPUTS: "correct what makes the inputs, or what --set gives it",
    Activity.FORWARD: "the model must run on these inputs",
    Activity.LOSS: "the loss must run on the model and these inputs",
    Activity.BACKWARD: "the loss must have gradients in eager too",
    Activity.OPTIMIZER: "correct the arguments of --optimizer, or name another",
    Activity.FILE_OPTIMIZER: "optimizer(params) must make its optimizer of the parameters that it is given",
}


def _is(*kinds: str) -> Callable[[Failure], bool]:
    return lambda failure: failure.kind in kinds


def _says(*texts: str) -> Callable[[Failure], bool]:
    return lambda failure: any(text in failure.message for text in texts)


def _passes(*places: str) -> Callable[[Failure], bool]:
    return lambda failure: failure.passes(*places)


def _is_of_custom_operator(failure: Failure) -> bool:
    return failure.operator is not None and is_custom(failure.operator)


def _is_of_data_loader(failure: Failure) -> bool:
    """Whether a loader or a sampler looks at what it draws itself."""
    return failure.kind == "DataDependentOutputException" and failure.passes("utils/data/")


def _lacks_fake_kernel(failure: Failure) -> bool:
    return failure.kind == "UnsupportedOperatorException" or "no fake impl registered" in failure.message


def _wants_other_arguments(failure: Failure) -> bool:
    return (
        failure.kind == "TypeError" and failure.is_our_call and not failure.source and failure.activity in _SIGNATURES
    )


def _is_of_subclass(failure: Failure) -> bool:
    return failure.tensor_subclass is not None or _WEIGHT_CLASS.search(failure.message) is not None


def _without_fake_kernel(failure: Failure) -> str:
    if _is_of_custom_operator(failure):
        return f"register a fake kernel of {failure.operator}: torch.library.register_fake"
    return "torch has no fake kernel of this operator: use another in its place"


def _of_subclass(failure: Failure) -> str:
    owner, weight = failure.tensor_subclass, _WEIGHT_CLASS.search(failure.message)
    name = weight[1] if weight else owner.__name__ if owner else "such tensors"
    return f"tensors with a dispatch of their own are not traced: plan the model before its tensors become {name}"


def _of_changing_shape(failure: Failure) -> str:
    name = str(getattr(failure.error, "func", ""))
    if "repeat_interleave" in name:
        return "a shape depends on tensor data: give repeat_interleave its output_size"
    if "nonzero" in name or "masked_select" in name:
        return "a shape depends on tensor data: multiply by the mask, or give torch.where all three arguments"
    return "a shape depends on tensor data: use an operator whose result has a fixed size"


def _of_unknown_value(failure: Failure) -> str:
    return _VALUES.get(failure.activity, _VALUES[Activity.FORWARD])


def _of_unknown_number(failure: Failure) -> str:
    if failure.activity in (Activity.FORWARD, Activity.LOSS):
        return (
            "a number that only a run knows is used here: keep it a tensor, without .item(), compute it after, or "
            "leave the line out of the step that is planned"
        )
    return _of_unknown_value(failure)


_SIGNATURES: Final = {
    Activity.BUILDING: "check --set against the parameters of what makes the model",
    Activity.INPUTS: "check --set against the parameters of what makes the inputs",
    Activity.FORWARD: "check the inputs against the signature of forward",
    Activity.LOSS: "loss takes the model and what forward takes: loss(model, *inputs)",
}
_VALUES: Final = {
    Activity.IMPORT: "the file looks at a value that only a run knows: compute it of Python numbers",
    Activity.BUILDING: "what makes the model looks at a value that only a run knows: compute it of Python numbers",
    Activity.CONFIGURATION: "this architecture looks at weights while it is made: plan it from a file, FILE.py:NAME",
    Activity.INPUTS: "what makes the inputs looks at random numbers: compute it of Python numbers",
    Activity.FORWARD: (
        "control flow depends on tensor data: use torch.where, or numbers that the file gives; "
        "guards and comparisons of a loop, leave out of the step that is planned"
    ),
    Activity.FILE_OPTIMIZER: "the values of parameters choose this optimizer's way: name another with --optimizer",
    Activity.OPTIMIZER: "the values of parameters choose this optimizer's way: name another with --optimizer",
}
_CAUSES: Final[tuple[tuple[Callable[[Failure], bool], str | Advice], ...]] = (
    (_is("SystemExit"), "keep what ends the program, or reads its arguments, under if __name__ == '__main__'"),
    (_is("ModuleNotFoundError"), "install what the file imports, or run from its environment"),
    (_is("ImportError"), "install the version that has it, or import another name"),
    (_is("MemoryError"), "make it with torch, whose tensors take no memory while they are traced"),
    (
        lambda failure: isinstance(failure.error, OSError),
        "run it where what it opens is there; weights need not be loaded for a plan",
    ),
    (
        lambda failure: failure.passes("jit/") or failure.message.startswith("TorchScript, "),
        "plan the module as it is before torch.jit compiles it",
    ),
    (
        _says("_scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy"),
        "torch has attention over parts of a sequence on a GPU alone: plan for --device cuda",
    ),
    (
        _says("Load balancing requires `is_causal=True`"),
        "call attention with is_causal=True, or turn torch's load balance off (_cp_options.enable_load_balance)",
    ),
    (
        _passes("distributed/tensor/experimental/_context_parallel/"),
        "attention over parts of a sequence has fused kernels alone: take half or single precision, and no mask",
    ),
    (
        _passes("distributed/tensor/", "distributed/device_mesh.py"),
        "give the ranks of a mesh as numbers, and distribute tensors as torch does on every rank",
    ),
    (_passes("nested/"), "nested tensors are traced with layout=torch.jagged alone: pad others, and give a mask"),
    (_is_of_subclass, _of_subclass),
    (_lacks_fake_kernel, _without_fake_kernel),
    (
        _is_of_custom_operator,
        lambda failure: f"correct its fake kernel, the one that is registered for {failure.operator}",
    ),
    (_is("DynamicOutputShapeException"), _of_changing_shape),
    (_is_of_data_loader, BATCH_IN_PLACE_OF_LOADER),
    (_is("DataDependentOutputException"), _of_unknown_value),
    (lambda failure: failure.takes_unknown_number, _of_unknown_number),
    (
        _is("NoAttentionKernelError"),
        "allow another backend (sdpa_kernel, enable_math_sdp), or change dtype or head size",
    ),
    (_is("UnsupportedFakeTensorException"), "only dense tensors can be traced"),
    (
        _says(".numpy() is not supported", "Numpy is not available"),
        "NumPy needs values: compute it with torch, or leave it out of what is planned",
    ),
    (
        _says("not compiled with CUDA", "No CUDA GPUs are available", "Found no NVIDIA driver"),
        "the model's own code names a GPU: run it where there is one; tmmu plan needs none",
    ),
    (_says('missing the required "forward" function'), "define forward in the class of the model"),
    (_says("does not support dense gradients"), "sparse gradients are not modelled: name another with --optimizer"),
    (
        _says("modified by an inplace operation"),
        "eager refuses this step too: torch.autograd.set_detect_anomaly(True) names the line there",
    ),
    (_wants_other_arguments, lambda failure: _SIGNATURES[failure.activity]),
)
"""(whether it is the cause, the hint): the first that fits."""
