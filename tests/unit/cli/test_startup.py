"""What must be quick stays quick: no torch where no model is traced."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "import tmmu.cli.app",
        "import tmmu.cli.commands.show, tmmu.cli.commands.verify, tmmu.cli.commands.plan",
        "import tmmu.driver",
    ],
)
def test_importing_the_command_line_imports_no_torch(statement: str) -> None:
    probe = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
