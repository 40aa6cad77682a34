"""Private names of torch stand in one file, each with its versions, and are loaded no sooner than they are used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tmmu
from tmmu import torch_private

ROOT = Path(tmmu.__file__).parent
PRIVATE = Path(torch_private.__file__)
VERSIONED = re.compile(r".{15,}\. Holds: 2\.\d\d(, 2\.\d\d)*\.", re.DOTALL)

ATTRIBUTES = frozenset({
    *("_apply", "_backward_hooks", "_base", "_boxed_call", "_buffers", "_build_file_map", "_cdata", "_dispatch_cache"),
    *("_get_device_module", "_modules", "_op", "_opname", "_orig_mod", "_overloadname", "_overloadpacket"),
    *("_parameters", "_schema", "_sequence_nr", "_should_skip_dynamo", "_untyped_storage", "_version"),
})  # fmt: skip
"""Of tensors, storages, modules and operators: private whatever the variable is called that holds one."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_of_torch(tree: ast.Module) -> set[str]:
    """What a file calls torch and its parts."""
    names = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def parts_of(node: ast.expr) -> list[str]:
    """``torch._C.Graph`` as its three names; empty for what starts with a call."""
    if isinstance(node, ast.Name):
        return [node.id]
    start = parts_of(node.value) if isinstance(node, ast.Attribute) else []
    return [*start, node.attr] if start and isinstance(node, ast.Attribute) else []


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each private name of torch in a file. Operators (``torch.ops…``) are none."""
    roots = names_of_torch(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for path in (start + alias.name for alias in node.names):
                if path.startswith("torch.") and any(map(is_private, path.split("."))):
                    yield node.lineno, path
        elif isinstance(node, ast.Attribute):
            parts = parts_of(node)
            is_of_torch = bool(parts) and parts[0] in roots and "ops" not in parts and is_private(node.attr)
            if is_of_torch or (node.attr in ATTRIBUTES and parts[:-1] not in (["self"], ["cls"])):
                yield node.lineno, ast.unparse(node)
        elif (isinstance(node, ast.Constant) and node.value in ATTRIBUTES) or (
            isinstance(node, ast.FunctionDef) and node.name == "_should_skip_dynamo"
        ):
            yield node.lineno, ast.unparse(node)


def test_private_names_of_torch_stand_in_one_file() -> None:
    strays = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != PRIVATE
        for line, name in private_names(ast.parse(path.read_text("utf-8")))
    ]
    assert strays == [], "give them a row in tmmu/torch_private.py"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("torch._C._stack()", ["torch._C._stack", "torch._C"]),
        ("from torch import nn\nnn.Module._apply", ["nn.Module._apply"]),
        ("from torch._ops import OpOverload", ["torch._ops.OpOverload"]),
        ("from torch.utils._pytree import tree_map as walk", ["torch.utils._pytree.tree_map"]),
        (
            "from torch._C import _autograd\n_autograd._profiler_enabled()",
            ["torch._C._autograd", "_autograd._profiler_enabled"],
        ),
        ("import torch.utils._pytree", ["torch.utils._pytree"]),
        ("x.untyped_storage()._cdata", ["x.untyped_storage()._cdata"]),
        ("getattr(module, '_orig_mod')", ["'_orig_mod'"]),
        ("torch.ops.aten._softmax.default, torch.__version__", []),
        ("class A:\n    def f(self):\n        return self._op, self._cache", []),
    ],
)
def test_private_names_of_torch_are_recognized(text: str, names: list[str]) -> None:
    assert [name for _, name in private_names(ast.parse(text))] == names


def documented_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each public name that the file binds, and the text beside it."""
    for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            yield ast.unparse(target), text


def test_each_private_name_has_a_reason_and_its_versions() -> None:
    rows = {name: text for name, text in documented_names(ast.parse(PRIVATE.read_text("utf-8"))) if name[0] != "_"}
    assert len(rows) > 50
    undocumented = [name for name, text in rows.items() if not VERSIONED.fullmatch(text)]
    assert undocumented == [], "say why tmmu uses it, and end with `Holds:` and the versions that were run"
    assert all(hasattr(torch_private, name) for name in rows)


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("tmmu.torch_private", "torch._dynamo torch._inductor torch._functorch.partitioners torch.export.pt2_archive"),
        ("tmmu.cli.app", "torch"),
        ("tmmu.passes.autograd.split", "torch._inductor.compile_fx"),
    ],
)
def test_imports_load_no_more_of_torch_than_they_need(module: str, unloaded: str) -> None:
    code = f"import sys, {module}; sys.exit(' '.join(set(sys.argv[1:]) & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code, *unloaded.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
