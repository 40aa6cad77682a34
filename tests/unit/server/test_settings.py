"""Settings: who goes before whom, and who is named where one is wrong."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import ROOT
from tmmu.errors import InvalidConfig
from tmmu.planner.arenas import parse_size
from tmmu.runtime.memory.sizing import Sizing
from tmmu.server.settings import PREFIX, ServerSettings, load_settings


def test_defaults_are_those_of_the_sources() -> None:
    settings, sizing = load_settings({}), Sizing()
    assert (settings.os_reserve, settings.safety_margin, settings.minimum) == (
        sizing.os_reserve,
        sizing.margin,
        sizing.minimum,
    )


def test_options_go_before_environment_before_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('budget = "1KiB"\nmax_requests = 3\nmax_batch = 2\n[models]\na = "x"\n')
    monkeypatch.setenv(f"{PREFIX}BUDGET", "2KiB")
    monkeypatch.setenv(f"{PREFIX}MAX_REQUESTS", "4")
    monkeypatch.setenv(f"{PREFIX}MODELS", '{"b": "y"}')
    settings = load_settings({"budget": 3072, "device": None}, file)
    assert (settings.budget, settings.max_requests, settings.max_batch) == (3072, 4, 2)
    assert settings.models == {"a": Path("x"), "b": Path("y")}
    assert load_settings({}, file).budget == 2048
    assert load_settings({"models": {"a": "z"}}, file).models == {"a": Path("z"), "b": Path("y")}


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        ({"listen": 3}, "", "--listen"),
        ({"models": {"a b": "x"}}, "", "--model: a model's name has"),
        ({"models": {"a" * 129: "x"}}, "", "1 to 128"),
        ({}, 'budget = "much"', "budget of the settings file: 'much' is not a size"),
        ({}, "body_bytes = -1", "body_bytes of the settings file"),
        ({}, "drain_seconds = 0", "drain_seconds"),
        ({}, "colour = 1", "colour"),
        ({}, "class_shares = [4, 0, 1]", "class_shares"),
        ({}, "class_shares = [4, 1]", "class_shares"),
        ({}, "headroom = 0.5", "headroom"),
        ({}, "escalation_seconds = -1", "escalation_seconds"),
        ({}, "=", "serve.toml"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, options: dict[str, Any], text: str, words: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as refusal:
        load_settings(options, file)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"), [("COLOUR", "red"), ("colour", "red"), ("MAX_BATCH", "many"), ("MODELS", "{")]
)
def test_wrong_variables_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv((PREFIX.lower() if name.islower() else PREFIX) + name, value)
    with pytest.raises(InvalidConfig) as refusal:
        load_settings({})
    assert name.lower() in str(refusal.value).lower()


def test_page_lists_every_setting_with_its_default() -> None:
    section = (ROOT / "docs/spec/serve.md").read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    listed = {cells[0].strip(" `"): cells[-1].strip(" `") for cells in rows}
    assert list(listed) == list(ServerSettings.model_fields)
    words = {"": {}, "none": None, "what they need": None, "the model's longest": None, "on": True, "off": False,
             "4, 3, 1": (4, 3, 1), "2^37": 1 << 37}  # fmt: skip
    for name, default in ServerSettings().model_dump().items():
        text = listed[name]
        is_size = text.endswith("iB")
        assert default == (words[text] if text in words else parse_size(text.replace(" ", "")) if is_size
                           else text if isinstance(default, str) else float(text)), name  # fmt: skip
