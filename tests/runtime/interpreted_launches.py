"""Programs whose fused ops are Triton kernels, bound and run on a CPU by Triton's interpreter; prints what came out.

The interpreter has none of CUDA's library of functions, so a few of Triton's own stand for those. Then the same texts
are compiled for two GPUs that are not there. Run with ``TRITON_INTERPRET=1``, or ``compile`` without it.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers

from tests.runtime.test_fused_kernels import bind_both, kernels_in
from tests.unit.fusion.programs import Cache, Net, cache_inputs, find_regions, net_inputs, program_of
from tmmu.fusion import fused_kernels
from tmmu.fusion.fused_operators import is_fused
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.kernel_forms import KernelForms
from tmmu.fusion.triton.launch_library import OPTIONS, launch_module
from tmmu.fusion.triton.launch_source import LaunchSource, generate_launches
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.steps.fused_trial import is_near

CASES: Final = ((Net, net_inputs()), (Cache, cache_inputs()))
CAPABILITIES: Final = (80, 90)
_TYPES: Final = {"float32": "*fp32", "int64": "*i64", "bool": "*i1"}


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


def interpret(folder: Path) -> dict[str, Any]:
    """For each case: kernels and fused ops, launches of a run, whether all is near, comparisons of the sanitizer."""
    triton_helpers.libdevice = SimpleNamespace(tanh=tanh, rsqrt=rsqrt, exp=exp)
    fused_kernels.TOOLCHAINS = dict.fromkeys(("cpu", "cuda"), fused_kernels.TOOLCHAINS["cuda"])  # type: ignore[misc]
    fused_kernels.KernelForms = lambda folder, _: KernelForms(folder, "cuda")  # type: ignore[assignment, misc]
    rows = {}
    for make, inputs in CASES:
        plain, fused, fusion = bind_both(make, inputs, folder)
        results = [*zip(fused.run(inputs), plain.run(inputs), strict=True)]
        dtypes = {name: torch.int64 if name == "places" else torch.float32 for name in plain.states}
        results += [(fused.state(name).view(dtype), plain.state(name).view(dtype)) for name, dtype in dtypes.items()]
        torch.manual_seed(0)
        weights = {name: tensor.detach() for name, tensor in make().state_dict().items()}
        sanitized = run_sanitized(fusion.program, fused, weights, inputs, token=bytes(32))
        rows[make.__name__] = {
            "kernels": kernels_in(fused),
            "fused": sum(is_fused(call.operator) for call in fusion.program.calls),
            "launches": fused.launch_count,
            "near": all(is_near(a, b) for a, b in results),
            "compared": sanitized.compared,
        }
    return rows


def compile_all(folder: Path) -> dict[str, Any]:
    """For each case and capability: kernels that were compiled, and how many of them want memory of their own."""
    rows = {}
    for make, inputs in CASES:
        groups = [region.group for region in find_regions(program_of(make, inputs))]
        for capability in CAPABILITIES:
            binaries = [each for group in groups for each in _compiled(group, capability, folder)]
            scratch = sum(binary.metadata.global_scratch_size > 0 for binary in binaries)
            rows[f"{make.__name__} {capability}"] = (sum("cubin" in binary.asm for binary in binaries), scratch)
    return rows


def _compiled(group: FusionGroup, capability: int, folder: Path) -> list[Any]:
    source = generate_launches(group)
    path = folder / f"{group.digest}.py"
    path.write_text(launch_module(source))
    module: dict[str, Any] = {"__name__": "launches"}
    exec(compile(path.read_text(), str(path), "exec"), module)
    binaries = []
    for launch in source.launches:
        signature = {
            **{
                name: _type(group, source, place)
                for name, place in zip(launch.text.pointers, launch.places, strict=True)
            },
            **dict.fromkeys(launch.text.numbers, "i32"),
            **dict.fromkeys(launch.text.blocks, "constexpr"),
        }
        what = triton.compiler.ASTSource(module[launch.text.name], signature, dict(launch.config.blocks))
        target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        options = OPTIONS | {"num_warps": launch.config.warps}
        binaries.append(triton.compile(what, target=target, options=options))
    return binaries


def _type(group: FusionGroup, source: LaunchSource, place: int) -> str:
    kind, index = source.form.pointers[place]
    if kind == "scratch":
        return _TYPES[source.dtypes[place]]
    bases = {"read": group.reads, "changed": group.changed, "result": group.results}[kind]
    return _TYPES[group.bases[bases[index]].window.dtype]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps((compile_all if sys.argv[1:] == ["compile"] else interpret)(Path(work))))
