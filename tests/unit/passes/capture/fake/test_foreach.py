"""A file may import what torch compiles as a script, in which an optimizer's choice of form is called."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim import adagrad

from tmmu.passes.capture.fake.foreach import foreach_as_on
from tmmu.torch_private import DEFAULT_FORM

FILE = """
import torch
import torch.distributed.optim  # compiles its optimizers when it is first imported
from torch import nn

model = nn.Linear(4, 4)
inputs = (torch.ones(2, 4),)
"""


@pytest.mark.filterwarnings("ignore")
def test_form_of_an_optimizer_may_be_compiled_as_a_script() -> None:
    with foreach_as_on("cuda"):
        scripted = torch.jit.script(getattr(adagrad, DEFAULT_FORM))
    assert scripted([torch.ones(1)], False) == (False, False)


@pytest.mark.slow
def test_file_that_imports_scripted_optimizers_is_planned(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FILE)
    code = (
        "import sys; from pathlib import Path; from tmmu.cli.main import main;"
        "sys.argv = ['tmmu', 'plan', 'model.py', '--mode', 'backward', '--loss', 'sum', '--optimizer', 'adamw'];"
        "main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "wrote model.plan.cbor" in done.stdout, done.stdout + done.stderr
