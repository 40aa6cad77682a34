"""Dynamo is imported by whoever compiles something, and what is compiled is planned as it was written."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from tmmu.passes.capture.fake import compiled
from tmmu.torch_private import DYNAMO, DYNAMO_PARTS

FILE = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
{first}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = {net}
    def forward(self, x):
        {body}
        return self.net(x)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
def inputs(): return (torch.zeros(2, 4),)
def loss(model, x): return model(x).sum()
def step(batch):
    loss(model, *batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
START = f"""
import sys
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

def calls(name):
    graph = capture(CaptureRequest(model=name, mode="backward", device="cpu")).graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]

def require_unloaded():
    loaded = [name for name in sys.modules if name.startswith("{DYNAMO}")]
    assert loaded == [], loaded

finders = list(sys.meta_path)
plain = calls("plain.py")
require_unloaded()
"""
MODES = """
from tmmu.cli.app import run
for number, options in enumerate((
    ["plain.py"], ["plain.py", "--mode", "backward", "--optimizer", "adamw"], ["plain.py:step", "--mode", "step"]
)):
    assert run(["plan", *options, "-o", f"{number}.plan.cbor"]) == 0, options
    require_unloaded()
"""
LOADED = f"""
import ast, os, torch
from tmmu.torch_private import FakeTensor

def use(file, limit):
    for name in (file, file, "plain.py"):
        assert calls(name) == plain, name
        dynamo = sys.modules["{DYNAMO}"]
        assert dynamo.eval_frame._stance.stance == "default"
    modules = [value for name, value in sys.modules.items() if name.startswith("{DYNAMO}")]
    assert len(modules) > 50
    assert len({{module.__spec__.name for module in modules}}) == len(modules)
    fakes = [module.__name__ for module in list(sys.modules.values()) for value in vars(module).values()
             if type(value) is FakeTensor]
    assert (fakes, sys.meta_path) == ([], finders)
    assert torch._dynamo is dynamo
    assert dynamo.config is sys.modules["{DYNAMO}.config"]
    assert dynamo.config.recompile_limit == limit
    graphs = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: graphs.append(graph) or graph.forward)(torch.ones(1))
    assert len(graphs) == 1

for file, limit in ast.literal_eval(sys.argv[1]):
    child = os.fork()
    if child == 0:
        use(file, limit)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, file
"""
LIMIT = import_module(f"{DYNAMO}.config").recompile_limit
USES = {
    "compiled as it runs": {"body": "return torch.compile(self.net)(x)"},
    "an option set, a part and a name imported": {
        "first": "\n".join([
            "torch._dynamo.config.recompile_limit = 17",
            "import torch._dynamo.eval_frame as part",
            "from torch._dynamo import disable, graph_break",
            "assert part.OptimizedModule and torch._dynamo.disable is disable",
            "same = disable(lambda x: x)",
        ]),
        "net": "torch.compile(net)",
        "body": "x = same(x)",
    },
    "parts imported first": {
        "first": "import torch._dynamo.eval_frame as part, torch._dynamo.source, torch._dynamo.config\n"
        "assert part.OptimizedModule and torch._dynamo.source.AttrSource",
    },
    "a decorator": {
        "first": "from torch import _dynamo\nsame = _dynamo.disable(recursive=False)(lambda x: x)",
        "body": "x = same(x)",
    },
}  # fmt: skip


def write_file(path: Path, *, first: str = "", net: str = "net", body: str = "pass") -> None:
    path.write_text(FILE.format(first=first, net=net, body=body))


@pytest.mark.parametrize(
    "names", [tuple(USES)[:1], pytest.param(tuple(USES)[1:], marks=pytest.mark.slow)], ids=["one", "others"]
)
def test_dynamo_is_as_ever_for_models_that_use_it_and_not_imported_for_others(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    write_file(tmp_path / "plain.py")
    uses = []
    for number, use in enumerate(map(USES.__getitem__, names)):
        write_file(tmp_path / f"using_{number}.py", **use)
        uses.append((f"using_{number}.py", 17 if "recompile_limit" in use.get("first", "") else LIMIT))
    command = [sys.executable, "-c", START + MODES + LOADED, repr(uses)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_what_stands_in_for_dynamo_is_as_dynamo_s() -> None:
    options = import_module(f"{DYNAMO}.config")
    known = DYNAMO_PARTS["config"]
    assert {name: value() for name, value in known.items()} == {name: getattr(options, name) for name in known}
    for part, names in DYNAMO_PARTS.items():
        assert [name for name in names if not hasattr(import_module(f"{DYNAMO}.{part}"), name)] == []


def test_a_hook_that_says_why_it_is_left_alone_imports_no_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(_: object) -> NoReturn:
        pytest.fail("Dynamo is imported")

    stand_in = compiled._DynamoToImport()
    monkeypatch.setattr(compiled._DynamoToImport, "imported", imported)
    assert stand_in.disable(abs, recursive=True, reason="skipping FSDP hooks") is abs
