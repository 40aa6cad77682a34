"""A sharded model's forward and backward pass on torch's own fake tensors, where nothing is recorded.

    python -m benchmarks.rank_models.fake_step FOLDER TP FSDP SEQUENCE [--tracked]

What a trace of one rank cannot go below while it runs torch's own code: transformers cuts the model by its plans on
the meta device, and the pass runs under ``FakeTensorMode`` and the ``fake`` process group, as torch's estimators do.
Without the update, which asks fake tensors for numbers, and without a plan. ``--tracked``: within torch's
``MemTracker``. Prints one line of JSON: seconds of processor time, imports included, and MiB.
"""

import argparse
import json
import resource
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tp", type=int)
    parser.add_argument("fsdp", type=int)
    parser.add_argument("sequence", type=int)
    parser.add_argument("--tracked", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    world = options.tp * options.fsdp
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    model = sharded_model(options.folder, options.tp, options.fsdp)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        tokens = torch.zeros((1, options.sequence), dtype=torch.int64)
        tracker = MemTracker() if options.tracked else nullcontext()
        if isinstance(tracker, MemTracker):
            tracker.track_external(model)
        with tracker:
            model(input_ids=tokens, labels=tokens).loss.backward()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu": usage.ru_utime + usage.ru_stime, "mib": usage.ru_maxrss / 1024}))


def sharded_model(folder: Path, tp: int, fsdp: int) -> torch.nn.Module:
    """The model of a configuration on the meta device, cut for this rank."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - seconds to import
    from transformers.distributed.configuration_utils import DistributedConfig  # noqa: PLC0415

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    kind = type(model)
    distributed, _, meshes = kind.prepare_distribute_model(DistributedConfig(tp_size=tp, fsdp_size=fsdp))
    return kind.maybe_distribute_model(model, distributed, meshes)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
