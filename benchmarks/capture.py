"""A whole plan beside one bare trace: `tmmu plan` of a Llama against `make_fx` and `torch.export` on the same model.

    python -m benchmarks.capture [--layers 126] [--export] [--sequence 2048]

Each row is a fresh process. `tmmu plan` is timed as a command, from start to the judged and written plan, imports
included; the peers are timed without their imports, model building apart, which favours them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_key_value_heads": 8}

PEER = """
import json, resource, sys, time
import torch, transformers
from torch._subclasses.fake_tensor import FakeTensorMode
kind, folder, sequence = sys.argv[1], sys.argv[2], int(sys.argv[3])
mode = FakeTensorMode(allow_non_fake_inputs=True)
with mode:
    config = transformers.AutoConfig.from_pretrained(folder)
    config.use_cache = False
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.zeros(1, sequence, dtype=torch.int64)
    positions = torch.zeros(1, sequence, dtype=torch.int64)
    mask = torch.ones(1, 1, sequence, sequence, dtype=torch.bool)
start = time.perf_counter()
with torch.no_grad():
    if kind == "make_fx":
        from torch.fx.experimental.proxy_tensor import make_fx
        with mode:
            run = lambda i, p, m: model(input_ids=i, position_ids=p, attention_mask=m).logits
            graph = make_fx(run, tracing_mode="real")(ids, positions, mask).graph
    else:
        kwargs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
        program = torch.export.export(model, (), kwargs, strict=False)
        graph = program.run_decompositions().graph
print(json.dumps({"seconds": time.perf_counter() - start, "nodes": len(graph.nodes),
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""

OURS = """
import json, resource, sys
from tmmu.cli.main import main
try:
    sys.argv = ["tmmu", *sys.argv[1:]]
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps({"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def write_config(folder: Path, layers: int) -> None:
    import transformers  # noqa: PLC0415

    config = transformers.LlamaConfig(
        num_hidden_layers=layers, vocab_size=128256, max_position_embeddings=131072, dtype="bfloat16", **SIZES
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)


def run(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def ours(folder: Path, sequence: int) -> dict[str, float]:
    """The whole life of the command's process, by the clock of whoever waits for it."""
    arguments = ["plan", f"hf:{folder}", "--seq", str(sequence), "-o", str(folder / "x.plan.cbor")]
    start = time.perf_counter()
    result = run("-c", OURS, *arguments)
    return result | {"seconds": time.perf_counter() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--export", action="store_true", help="time torch.export too (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        whole, short = Path(name) / "whole", Path(name) / "short"
        write_config(whole, options.layers)
        write_config(short, 16)
        plan, small = ours(whole, options.sequence), ours(short, options.sequence)
        peers = ["make_fx", "export"] if options.export else ["make_fx"]
        traced = {peer: run("-c", PEER, peer, str(whole), str(options.sequence)) for peer in peers}
    print(f"tmmu plan, {options.layers} layers: {plan['seconds']:.2f} s, {plan['mib']:.0f} MiB")
    print(f"tmmu plan, 16 layers: {small['seconds']:.2f} s; growth {plan['seconds'] / small['seconds']:.2f}")
    for peer, result in traced.items():
        ratio = plan["seconds"] / result["seconds"]
        cost = f"{result['seconds']:.2f} s, {result['mib']:.0f} MiB, {result['nodes']} nodes"
        print(f"{peer}: {cost}; ours/theirs {ratio:.3f}")
    return 0 if plan["seconds"] <= traced["make_fx"]["seconds"] else 1


if __name__ == "__main__":
    sys.exit(main())
