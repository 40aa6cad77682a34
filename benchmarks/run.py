"""A step inside its plan beside the same module eager, and compiled by inductor: one process, alternating, medians.

    python -m benchmarks.run [--rounds 30] [--no-inductor] [--only decode]

`calls` is the plan run one call at a time from Python, `tmmu` the same calls given to the interpreter, `fused` the
plan of the program whose ops are fused, with compiled kernels. The last column is how fast `fused` reads its weights,
all of which a decode step reads once, beside a plain read of as many bytes: outside the cache, that limits it.

A `train` step is loss, backward and AdamW, without dropout; inductor compiles the module and the optimizer's step.
"""

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

Step = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An architecture at a size: a decode step against a cache, or a step over a whole sequence, which may train."""

    name: str
    architecture: str
    sizes: Mapping[str, Any]
    decode: bool
    sequence: int
    train: bool = False


NO_DROPOUT: Mapping[str, float] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LEARNING_RATE = 1e-3


def gpt2(width: int, layers: int = 12, heads: int = 4) -> dict[str, Any]:
    return {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": 1000, "n_positions": 1024}


def llama(width: int, layers: int = 12, heads: int = 4) -> dict[str, Any]:
    return {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "vocab_size": 1000,
        "num_attention_heads": heads, "num_key_value_heads": heads // 2, "max_position_embeddings": 1024,
    }  # fmt: skip


def cases() -> list[Case]:
    decodes = [
        Case(name=f"{kind} decode {width}", architecture=kind, sizes=sizes(width), decode=True, sequence=128)
        for kind, sizes in (("GPT2", gpt2), ("Llama", llama))
        for width in (64, 128, 256)
    ]
    prefills = [
        Case(name=f"{kind} prefill {width}", architecture=kind, sizes=sizes(width, layers, 8), decode=False, sequence=n)
        for kind, sizes, width, layers, n in (
            ("GPT2", gpt2, 256, 12, 64), ("GPT2", gpt2, 768, 12, 128), ("Llama", llama, 256, 12, 64),
            ("Llama", llama, 512, 12, 256),
        )
    ]  # fmt: skip
    trains = [
        Case(
            name=f"GPT2 train {width}", architecture="GPT2", sizes=gpt2(width, layers) | NO_DROPOUT, decode=False,
            sequence=tokens, train=True,
        )
        for width, layers, tokens in ((64, 4, 32), (256, 4, 64))
    ]  # fmt: skip
    return decodes + prefills + trains


def module_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The module with random weights, and what it is called with."""
    import transformers  # noqa: PLC0415

    config = getattr(transformers, f"{case.architecture}Config")(**case.sizes)
    kind = "LMHeadModel" if case.architecture == "GPT2" else "ForCausalLM"
    torch.manual_seed(0)
    module = getattr(transformers, f"{case.architecture}{kind}")(config).eval()
    if not case.decode:
        module.config.use_cache = False
        ids = torch.randint(0, 999, (1, case.sequence))
        labels = {"labels": ids} if case.train else {}
        return module.train(case.train), {"input_ids": ids, "use_cache": False} | labels
    cache = transformers.StaticCache(config=config, max_cache_len=case.sequence)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    cache.early_initialization(1, heads, config.hidden_size // config.num_attention_heads, torch.float32, "cpu")
    mask = torch.ones(1, case.sequence, dtype=torch.int64)
    ids = torch.randint(0, 999, (1, 1))
    return module, {"input_ids": ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}


def bind_step(case: Case, module: Any) -> tuple[Any, Any, Any]:
    """Executors of the step in its plan: one that captures it, one that makes each call from Python, one fused."""
    from tmmu.driver import PlanRequest, kernel_folder, stack_bytes_of  # noqa: PLC0415
    from tmmu.fusion.fused_kernels import Guard, fuse_for_run  # noqa: PLC0415
    from tmmu.passes.capture.constants import constant_values  # noqa: PLC0415
    from tmmu.passes.capture.request import CaptureRequest, no_progress  # noqa: PLC0415
    from tmmu.passes.capture.trace import capture  # noqa: PLC0415
    from tmmu.passes.pipeline import lower_program  # noqa: PLC0415
    from tmmu.planner.arenas import default_arenas  # noqa: PLC0415
    from tmmu.planner.prepare import prepare_memory  # noqa: PLC0415
    from tmmu.planner.token import token_from_seed  # noqa: PLC0415
    from tmmu.runtime.execute.bind import bind  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        module.config.architectures = [type(module).__name__]
        module.config.save_pretrained(folder)
        size = {"cache_len": case.sequence} if case.decode else {"seq": case.sequence}
        training = {"mode": "backward", "optimizer": f"adamw:lr={LEARNING_RATE}"} if case.train else {}
        request = CaptureRequest(model=f"hf:{folder}", device="cpu", decode=case.decode, **size, **training)
        traced = capture(request, no_progress)
    program, constants, token = lower_program(traced), constant_values(traced), token_from_seed(1)
    settings = (
        {"mode": "backward", "preset": "remat_enabled"}
        if case.train
        else dict.fromkeys(("mode", "preset"), "inference")
    )
    plan = prepare_memory(program.graph, **settings, token=token, arenas=default_arenas())
    weights = constants | dict(module.named_parameters()) | dict(module.named_buffers())
    captured, calls = (bind(program, plan, token=token, weights=weights, replay=replay) for replay in (True, False))
    plan_request = PlanRequest(**settings, token=token, arenas=default_arenas())
    fusion = fuse_for_run(program, Guard(stack_bytes=stack_bytes_of(plan_request)), kernel_folder())
    fused_plan = prepare_memory(fusion.program.graph, **settings, token=token, arenas=default_arenas())
    return captured, calls, bind(fusion.program, fused_plan, token=token, weights=weights, kernels=fusion.kernels)


def training_step(module: Any, arguments: Mapping[str, Any], *, inductor: bool) -> Step:
    """Loss, backward and update, as they are or compiled."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    call, update = (torch.compile(module), torch.compile(optimizer.step)) if inductor else (module, optimizer.step)

    def step() -> None:
        with torch.enable_grad():
            call(**arguments).loss.backward()
            update()
            optimizer.zero_grad()

    return step


def step_times(steps: Mapping[str, Step], rounds: int, reset: Callable[[], None]) -> dict[str, float]:
    """Milliseconds by name: the median over rounds of the fastest of five runs in the round; steps alternate."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    with torch.no_grad():
        for step in steps.values():
            for _ in range(3):
                step()
        for _ in range(rounds):
            reset()
            for name, step in steps.items():
                best = float("inf")
                for _ in range(5):
                    start = time.perf_counter()
                    step()
                    best = min(best, time.perf_counter() - start)
                samples[name].append(best * 1e3)
    return {name: median(milliseconds) for name, milliseconds in samples.items()}


def measure(case: Case, *, inductor: bool, rounds: int) -> tuple[dict[str, float], int]:
    """(milliseconds by variant, bytes of the weights)."""
    module, arguments = module_of(case)
    executors = bind_step(case, module)
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    inputs = {spec.name: tensors[spec.name] for spec in executors[0].inputs}
    steps: dict[str, Step] = {"eager": lambda: module(**arguments)}
    if case.train:
        steps["eager"] = training_step(copy.deepcopy(module), arguments, inductor=False)
    steps |= {
        name: partial(executor.run, inputs)
        for name, executor in zip(("tmmu", "calls", "fused"), executors, strict=True)
    }
    if inductor:
        compiled = torch.compile(module)
        steps["inductor"] = lambda: compiled(**arguments)
        if case.train:
            steps["inductor"] = training_step(copy.deepcopy(module), arguments, inductor=True)

    def reset() -> None:
        """Caches begin at their first position again."""
        if case.train:
            return
        if case.decode:
            arguments["past_key_values"].reset()
        for executor in executors:
            for name in executor.states:
                executor.state(name).zero_()

    read = torch.ones(executors[0].segments.usage["text"].used // 8, dtype=torch.float64)
    steps["read"] = read.sum
    return step_times(steps, rounds, reset), executors[0].segments.usage["text"].used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':20}{'eager':>10}{'calls':>10}{'tmmu':>10}{'inductor':>10}{'fused':>10}", end="")
    print("  eager/tmmu  inductor/tmmu  tmmu/fused  inductor/fused  weights  of a read")
    for case in cases():
        if options.only in case.name:
            times, weight_bytes = measure(case, inductor=not options.no_inductor, rounds=options.rounds)
            eager, calls, planned, fused = (times[name] for name in ("eager", "calls", "tmmu", "fused"))
            inductor = times.get("inductor", float("nan"))
            columns = "".join(f"{ms:8.3f}ms" for ms in (eager, calls, planned, inductor, fused))
            rates = f"{weight_bytes / fused / 1e6:6.1f} GB/s{times['read'] / fused:8.2f}" * (not case.train)
            ratios = f"{eager / planned:12.2f}{inductor / planned:15.2f}{planned / fused:12.2f}{inductor / fused:16.2f}"
            print(f"{case.name:20}{columns}{ratios}{rates}")


if __name__ == "__main__":
    main()
