import json
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache.cached import TOKEN
from tests.unit.cli.graphs import small
from tmmu.cache import key_parts as parts
from tmmu.cache.key_parts import (
    configuration_parts,
    exported_parts,
    graph_parts,
    installed_part,
    library_part,
    library_parts,
    program_parts,
    request_parts,
    traced_parts,
)
from tmmu.ir.key import Key, NoKey, Part, key_of
from tmmu.planner.arenas import parse_arenas

REQUEST: dict[str, Any] = {
    "device": "cuda",
    "mode": "backward",
    "optimizer": None,
    "preset": "train_full",
    "token": TOKEN,
    "arenas": parse_arenas(()),
    "search_nodes": 0,
}
WORKLOAD: dict[str, object] = {"batch": 1, "seq": None, "dtype": None, "decode": False, "cache_len": None}


def named(found: tuple[Part, ...] | NoKey) -> Key:
    assert not isinstance(found, NoKey), found.reason
    return key_of(found)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    parts._cached_library_part.cache_clear()
    installed_part.cache_clear()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("target", {"device": "cpu"}),
        ("mode", {"mode": "forward"}),
        ("optimizer", {"optimizer": "adamw"}),
        ("preset", {"preset": "inference"}),
        ("token", {"token": TOKEN[:-1] + b"x"}),
        ("token", {"token": TOKEN + b"x"}),
        ("arenas", {"arenas": parse_arenas(("activations=capacity:8GiB",))}),
        ("arenas", {"arenas": parse_arenas(("parameters=alignment:512",))}),
        ("arenas", {"arenas": parse_arenas(("gradients=page:4096",))}),
        ("arenas", {"arenas": parse_arenas(("activations=layout:slots",))}),
        ("nodes", {"search_nodes": 1}),
    ],
)
def test_each_thing_that_is_asked_is_a_part(part: str, change: dict[str, Any]) -> None:
    base, other = key_of(request_parts(**REQUEST)), key_of(request_parts(**REQUEST | change))
    assert base.differences(other) == (part,)


def test_a_token_is_not_kept() -> None:
    shown = [part.text for part in request_parts(**REQUEST)]
    assert TOKEN[:8].hex() + "…" in shown
    assert not any(TOKEN[:9].hex() in text for text in shown)


def test_switches_of_libraries_count_and_other_variables_do_not() -> None:
    base = key_of(program_parts({"PATH": "/bin", "HOME": "/root"}))
    assert base.digest == key_of(program_parts({"HOME": "/home"})).digest
    for name in ("TORCH_X", "PYTORCH_X", "TRANSFORMERS_X", "ATEN_X"):
        on, off = (key_of(program_parts({name: value})) for value in "10")
        assert base.differences(on) == on.differences(off) == ("environment",)


def test_secrets_in_switches_are_not_kept() -> None:
    assert not any("secret" in part.text for part in program_parts({"TORCH_TOKEN": "secret"}))


@pytest.mark.parametrize(
    ("what", "value"),
    [("python_version", "3.99.0"), ("python_implementation", "Other"), ("machine", "riscv64")],
)
def test_another_python_is_another_part(monkeypatch: pytest.MonkeyPatch, what: str, value: str) -> None:
    base = key_of(program_parts({}))
    monkeypatch.setattr(parts.platform, what, lambda: value)
    assert base.differences(key_of(program_parts({}))) == ("python",)


def test_our_own_code_is_a_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def planning(text: str) -> bytes:
        for name in ("driver.py", "errors.py", "torch_private.py", "__init__.py"):
            (tmp_path / name).write_text("")
        for name in ("ir", "judge", "passes", "planner/pack"):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "planner" / "pack" / "best.py").write_text(text)
        return parts._planning_code_digest.__wrapped__()

    monkeypatch.setattr(parts.tmmu, "__file__", str(tmp_path / "__init__.py"))
    assert planning("a = 1") == planning("a = 1") != planning("a = 2")
    one = planning("a = 1")
    (tmp_path / "planner" / "pack" / "best.py").rename(tmp_path / "ir" / "best.py")
    (tmp_path / "planner" / "pack" / "best.py").write_text("")
    assert planning("a = 1") != one
    (tmp_path / "cli").mkdir()
    two = planning("a = 1")
    (tmp_path / "cli" / "app.py").write_text("what is printed decides no plan")
    assert planning("a = 1") == two


# -- libraries


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed library of two files."""
    root = tmp_path / "site-packages" / "shelf"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("a = 1")
    (root / "inner" / "code.py").write_text("b = 1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(root.parent)])
    return root


def digest_of(name: str) -> bytes:
    parts._cached_library_part.cache_clear()
    found = library_part(name)
    assert isinstance(found, Part)
    return found.digest


def test_a_library_is_its_code_files(library: Path) -> None:
    before = digest_of("shelf")
    assert digest_of("shelf") == before
    (library / "inner" / "notes.txt").write_text("no code")
    (library / "__pycache__").mkdir()
    (library / "__pycache__" / "code.py").write_text("compiled")
    assert digest_of("shelf") == before
    (library / "inner" / "more.so").write_text("code")
    assert digest_of("shelf") != before


@pytest.mark.parametrize("file", ["__init__.py", "inner/code.py"])
def test_an_edit_in_place_is_another_library(library: Path, file: str) -> None:
    before = digest_of("shelf")
    about = (library / file).stat()
    (library / file).write_text("b = 2")
    os.utime(library / file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert digest_of("shelf") != before


def test_a_library_of_one_file(library: Path) -> None:
    (library.parent / "leaf.py").write_text("a = 1")
    assert digest_of("leaf") != digest_of("shelf")


def why_none(*names: str) -> str:
    parts._cached_library_part.cache_clear()
    found = library_parts(names)
    assert isinstance(found, NoKey)
    return found.reason


def test_a_library_of_which_no_code_is_found_has_no_key(library: Path) -> None:
    """What it says could not be told from what it will say."""
    assert why_none("shelf", "gone", "torch") == "the library gone: no code of it is found"
    (library.parent / "empty").mkdir()
    assert why_none("empty") == "the library empty: no code of it is found"


def test_folders_behind_links_are_a_librarys_too_and_circles_end(library: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "code.py").write_text("c = 1")
    (library / "linked").symlink_to(tmp_path / "elsewhere")
    (library / "inner" / "circle").symlink_to(library)
    (library / "dangling").symlink_to(tmp_path / "nowhere")
    (library / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    before = digest_of("shelf")
    (tmp_path / "elsewhere" / "code.py").write_text("c = 12")
    assert digest_of("shelf") != before


def test_compiled_files_without_source_are_code(library: Path) -> None:
    before = digest_of("shelf")
    (library / "inner" / "net.pyc").write_bytes(b"code")
    assert digest_of("shelf") != before


def test_what_else_is_installed_counts_for_libraries_that_look_for_it(library: Path) -> None:
    def listed(*names: str) -> set[str]:
        installed_part.cache_clear()
        return {part.name for part in named(library_parts(names)).parts}

    assert listed("torch") == {"library.torch"}
    assert listed("torch", "shelf") == {"library.torch", "library.shelf", "installed"}
    before = installed_part().digest
    (library.parent / "fast-1.0.dist-info").mkdir()
    installed_part.cache_clear()
    assert installed_part().digest != before


# -- files


def configuration(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["A"], "width": 4} | changes))
    return folder


def test_a_configuration_is_its_files_and_its_workload(tmp_path: Path) -> None:
    folder = configuration(tmp_path / "net")
    base = named(configuration_parts(folder, WORKLOAD))
    assert base == named(configuration_parts(folder / "config.json", WORKLOAD))
    assert base.differences(named(configuration_parts(folder, WORKLOAD | {"batch": 2}))) == ("workload",)
    (folder / "weights.bin").write_bytes(b"1")
    assert base == named(configuration_parts(folder, WORKLOAD))
    (folder / "config.4.0.json").write_text("{}")
    assert base.differences(named(configuration_parts(folder, WORKLOAD))) == ("model",)
    (folder / "config.4.0.json").unlink()
    configuration(folder, width=5)
    assert base.differences(named(configuration_parts(folder, WORKLOAD))) == ("model",)
    configuration(tmp_path / "other")
    assert base.differences(named(configuration_parts(tmp_path / "other", WORKLOAD))) == ("model",)


def test_a_configuration_says_what_it_is(tmp_path: Path) -> None:
    found = configuration_parts(configuration(tmp_path / "net"), WORKLOAD)
    assert not isinstance(found, NoKey)
    assert found[0].text == "net A"


@pytest.mark.parametrize("text", ["", "[]", "{", "\ud800"])
def test_a_configuration_that_says_nothing_is_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    configuration_parts(tmp_path, WORKLOAD)
    configuration_parts(tmp_path / "none", WORKLOAD)


def archive(path: Path, **changes: bytes) -> Path:
    records = {
        "net/models/model.json": b"graph",
        "net/data/weights/weight_0": b"1234",
        "net/data/weights/model_weights_config.json": b"shapes",
        "net/data/constants/tensor_0": b"1",
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (records | changes).items():
            file.writestr(name, data)
    return path


def test_an_exported_program_is_all_but_its_weights(tmp_path: Path) -> None:
    base = named(exported_parts(archive(tmp_path / "net.pt2")))
    weights = named(exported_parts(archive(tmp_path / "net.pt2", **{"net/data/weights/weight_0": b"5678"})))
    assert base == weights
    for name, data in (
        ("net/models/model.json", b"grape"),
        ("net/data/weights/weight_0", b"12345"),
        ("net/data/weights/model_weights_config.json", b"shape!"),
        ("net/data/constants/tensor_0", b"2"),
        ("net/more", b""),
    ):
        other = named(exported_parts(archive(tmp_path / "net.pt2", **{name: data})))
        assert base.differences(other) == ("model",), name
    assert base.differences(named(exported_parts(archive(tmp_path / "other.pt2")))) == ("model",)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04"])
def test_a_broken_program_has_no_key(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.pt2").write_bytes(data)
    assert isinstance(exported_parts(tmp_path / "net.pt2"), NoKey)
    assert isinstance(exported_parts(tmp_path / "none.pt2"), NoKey)


def test_a_graph_is_its_bytes() -> None:
    assert graph_parts(b"a", "net") != graph_parts(b"b", "net")
    assert graph_parts(b"a", "net")[0].text == "net, graph of 1 bytes"


def test_a_traced_program_is_told_by_its_graph_and_names_decide_nothing() -> None:
    graph = small()
    model, inputs = traced_parts(graph)
    assert model.text == f"small, 5 ops, {graph.ir_hash.hex()}"
    assert (inputs.name, inputs.text) == ("model.inputs", "x float32[4,256]")
    names = ("y", *graph.notes.buffers[1:])
    other = replace(graph, notes=replace(graph.notes, name="a name that goes on " * 9, buffers=names))
    assert key_of(traced_parts(other)).digest == key_of((model, inputs)).digest
    assert traced_parts(other)[0].text.endswith(f", {graph.ir_hash.hex()}"), "however long the name is"
    assert traced_parts(other)[1].text == "y float32[4,256]"
    more = replace(graph, ops=replace(graph.ops, target=("aten.bmm", *graph.ops.target[1:])))
    assert traced_parts(more)[0].digest != model.digest
