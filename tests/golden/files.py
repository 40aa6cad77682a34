"""The golden files of the folder in which a test runs, as bytes, and one exchange of them."""

import shutil
from pathlib import Path

GOLDEN = Path("golden")


def contents() -> dict[str, bytes]:
    """Every file of the folder, hidden ones too."""
    return {str(path): path.read_bytes() for path in sorted(GOLDEN.rglob("*")) if path.is_file()}


def another_graph() -> None:
    """Exchange the graph of ``diamond`` for that of ``mixed-roles``."""
    shutil.copy(GOLDEN / "mixed-roles.ir.cbor", GOLDEN / "diamond.ir.cbor")
