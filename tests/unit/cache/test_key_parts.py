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


def key_of_parts(key_parts: tuple[Part, ...] | NoKey) -> Key:
    assert not isinstance(key_parts, NoKey), key_parts.reason
    return key_of(key_parts)


@pytest.fixture(autouse=True)
def clear_memoized_parts() -> Iterator[None]:
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
def test_request_parts_cover_every_option(part: str, change: dict[str, Any]) -> None:
    base, changed = key_of(request_parts(**REQUEST)), key_of(request_parts(**REQUEST | change))
    assert base.differences(changed) == (part,)


def test_token_text_is_its_first_bytes() -> None:
    shown = [part.text for part in request_parts(**REQUEST)]
    assert TOKEN[:8].hex() + "…" in shown
    assert not any(TOKEN[:9].hex() in text for text in shown)


def test_environment_part_covers_switches_of_libraries_alone() -> None:
    base = key_of(program_parts({"PATH": "/bin", "HOME": "/root"}))
    assert base.digest == key_of(program_parts({"HOME": "/home"})).digest
    for name in ("TORCH_X", "PYTORCH_X", "TRANSFORMERS_X", "ATEN_X"):
        on, off = (key_of(program_parts({name: value})) for value in "10")
        assert base.differences(on) == on.differences(off) == ("environment",)


def test_environment_text_holds_no_values() -> None:
    assert not any("secret" in part.text for part in program_parts({"TORCH_TOKEN": "secret"}))


@pytest.mark.parametrize(
    ("function", "value"),
    [("python_version", "3.99.0"), ("python_implementation", "Other"), ("machine", "riscv64")],
)
def test_python_part_covers_version_and_machine(monkeypatch: pytest.MonkeyPatch, function: str, value: str) -> None:
    base = key_of(program_parts({}))
    monkeypatch.setattr(parts.platform, function, lambda: value)
    assert base.differences(key_of(program_parts({}))) == ("python",)


def test_tmmu_part_covers_our_planning_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def planning(text: str) -> bytes:
        for name in ("driver.py", "errors.py", "kernel_switches.py", "torch_private.py", "__init__.py"):
            (tmp_path / name).write_text("")
        for name in ("ir", "judge", "passes", "planner/pack"):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "planner" / "pack" / "best.py").write_text(text)
        return parts._planning_code_digest.__wrapped__()

    monkeypatch.setattr(parts.tmmu, "__file__", str(tmp_path / "__init__.py"))
    assert planning("a = 1") == planning("a = 1") != planning("a = 2")
    before_move = planning("a = 1")
    (tmp_path / "planner" / "pack" / "best.py").rename(tmp_path / "ir" / "best.py")
    (tmp_path / "planner" / "pack" / "best.py").write_text("")
    assert planning("a = 1") != before_move
    (tmp_path / "cli").mkdir()
    before_output_code = planning("a = 1")
    (tmp_path / "cli" / "app.py").write_text("what is printed decides no plan")
    assert planning("a = 1") == before_output_code


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
    part = library_part(name)
    assert isinstance(part, Part)
    return part.digest


def test_library_part_covers_code_files_alone(library: Path) -> None:
    before = digest_of("shelf")
    assert digest_of("shelf") == before
    (library / "inner" / "notes.txt").write_text("no code")
    (library / "__pycache__").mkdir()
    (library / "__pycache__" / "code.py").write_text("compiled")
    assert digest_of("shelf") == before
    (library / "inner" / "more.so").write_text("code")
    assert digest_of("shelf") != before


@pytest.mark.parametrize("file", ["__init__.py", "inner/code.py"])
def test_library_part_covers_modification_times(library: Path, file: str) -> None:
    before = digest_of("shelf")
    about = (library / file).stat()
    (library / file).write_text("b = 2")
    os.utime(library / file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert digest_of("shelf") != before


def test_library_may_be_one_file(library: Path) -> None:
    (library.parent / "leaf.py").write_text("a = 1")
    assert digest_of("leaf") != digest_of("shelf")


def reason_for_no_key(*names: str) -> str:
    parts._cached_library_part.cache_clear()
    no_key = library_parts(names)
    assert isinstance(no_key, NoKey)
    return no_key.reason


def test_library_without_code_has_no_key(library: Path) -> None:
    assert reason_for_no_key("shelf", "gone", "torch") == "the library gone: no code of it is found"
    (library.parent / "empty").mkdir()
    assert reason_for_no_key("empty") == "the library empty: no code of it is found"


def test_library_part_follows_links_once(library: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "code.py").write_text("c = 1")
    (library / "linked").symlink_to(tmp_path / "elsewhere")
    (library / "inner" / "circle").symlink_to(library)
    (library / "dangling").symlink_to(tmp_path / "nowhere")
    (library / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    before = digest_of("shelf")
    (tmp_path / "elsewhere" / "code.py").write_text("c = 12")
    assert digest_of("shelf") != before


def test_library_part_covers_compiled_files_without_source(library: Path) -> None:
    before = digest_of("shelf")
    (library / "inner" / "net.pyc").write_bytes(b"code")
    assert digest_of("shelf") != before


def test_installed_part_is_left_out_for_torch_alone(library: Path) -> None:
    def listed(*names: str) -> set[str]:
        installed_part.cache_clear()
        return {part.name for part in key_of_parts(library_parts(names)).parts}

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


def test_configuration_parts_cover_files_folder_and_workload(tmp_path: Path) -> None:
    folder = configuration(tmp_path / "net")
    base = key_of_parts(configuration_parts(folder, WORKLOAD))
    assert base == key_of_parts(configuration_parts(folder / "config.json", WORKLOAD))
    assert base.differences(key_of_parts(configuration_parts(folder, WORKLOAD | {"batch": 2}))) == ("workload",)
    (folder / "weights.bin").write_bytes(b"1")
    assert base == key_of_parts(configuration_parts(folder, WORKLOAD))
    (folder / "config.4.0.json").write_text("{}")
    assert base.differences(key_of_parts(configuration_parts(folder, WORKLOAD))) == ("model",)
    (folder / "config.4.0.json").unlink()
    configuration(folder, width=5)
    assert base.differences(key_of_parts(configuration_parts(folder, WORKLOAD))) == ("model",)
    configuration(tmp_path / "other")
    assert base.differences(key_of_parts(configuration_parts(tmp_path / "other", WORKLOAD))) == ("model",)


def test_configuration_text_names_the_architecture(tmp_path: Path) -> None:
    key_parts = configuration_parts(configuration(tmp_path / "net"), WORKLOAD)
    assert not isinstance(key_parts, NoKey)
    assert key_parts[0].text == "net A"


@pytest.mark.parametrize("text", ["", "[]", "{", "\ud800"])
def test_configuration_without_content_is_no_error(tmp_path: Path, text: str) -> None:
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


def test_exported_parts_cover_all_but_the_bytes_of_weights(tmp_path: Path) -> None:
    base = key_of_parts(exported_parts(archive(tmp_path / "net.pt2"), {}))
    weights = key_of_parts(exported_parts(archive(tmp_path / "net.pt2", **{"net/data/weights/weight_0": b"5678"}), {}))
    assert base == weights
    for name, data in (
        ("net/models/model.json", b"grape"),
        ("net/data/weights/weight_0", b"12345"),
        ("net/data/weights/model_weights_config.json", b"shape!"),
        ("net/data/constants/tensor_0", b"2"),
        ("net/more", b""),
    ):
        changed = key_of_parts(exported_parts(archive(tmp_path / "net.pt2", **{name: data}), {}))
        assert base.differences(changed) == ("model",), name
    assert base.differences(key_of_parts(exported_parts(archive(tmp_path / "other.pt2"), {}))) == ("model",)
    other = key_of_parts(exported_parts(archive(tmp_path / "net.pt2"), {"dtype": "bfloat16"}))
    assert base.differences(other) == ("workload",)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04"])
def test_exported_program_that_is_broken_has_no_key(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.pt2").write_bytes(data)
    assert isinstance(exported_parts(tmp_path / "net.pt2", {}), NoKey)
    assert isinstance(exported_parts(tmp_path / "none.pt2", {}), NoKey)


def test_graph_parts_cover_the_bytes_of_the_file() -> None:
    assert graph_parts(b"a", "net") != graph_parts(b"b", "net")
    assert graph_parts(b"a", "net")[0].text == "net, graph of 1 bytes"


def test_traced_parts_cover_the_graph_without_names() -> None:
    graph = small()
    model, inputs = traced_parts(graph)
    assert model.text == f"small, 5 ops, {graph.ir_hash.hex()}"
    assert (inputs.name, inputs.text) == ("model.inputs", "x float32[4,256]")
    names = ("y", *graph.notes.buffers[1:])
    renamed = replace(graph, notes=replace(graph.notes, name="a name that goes on " * 9, buffers=names))
    assert key_of(traced_parts(renamed)).digest == key_of((model, inputs)).digest
    assert traced_parts(renamed)[0].text.endswith(f", {graph.ir_hash.hex()}"), "however long the name is"
    assert traced_parts(renamed)[1].text == "y float32[4,256]"
    more = replace(graph, ops=replace(graph.ops, target=("aten.bmm", *graph.ops.target[1:])))
    assert traced_parts(more)[0].digest != model.digest
