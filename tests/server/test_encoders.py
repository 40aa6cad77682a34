"""An encoder-decoder is served too: it encodes the prompt."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.models import model_of, reference_text
from tests.server.running import RunningServer, running
from tests.server.test_completions import body_of, events_of
from tmmu.server.settings import load_settings


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("t5")
    model_of("T5").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 0}')
    options = {"models": {"t5": folder}, "listen": "127.0.0.1:0", "budget": "16MiB", "max_tokens": 64}
    with running(load_settings(options)) as server:
        yield server


def test_texts_are_those_of_the_model(t5: RunningServer, tmp_path: Path) -> None:
    prompts = [[5, 6, 7, 8], [9, 10]]
    body = body_of(model="t5", prompt=prompts, n=2, seed=3, temperature=1.0, max_tokens=5)
    answer = t5.post("completions", body).json()
    model = model_of("T5")
    expected = [
        " ".join(map(str, reference_text(model, prompt, 5, seed=seed)))
        for prompt, seed in ((prompts[0], 3), (prompts[0], 4), (prompts[1], 5), (prompts[1], 6))
    ]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == 6
    events = events_of(t5.post("completions", body | {"stream": True, "prompt": prompts[0], "n": 1}).text)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == expected[0]
    t5.wait_for(lambda: t5.data_used("t5") == 0)


def test_prompts_and_texts_have_limits_of_their_own(t5: RunningServer) -> None:
    longest = t5.service.models.find("t5").longest
    assert longest == 64
    assert t5.post("completions", body_of(model="t5", max_tokens=63)).status_code == 200
    for changes in ({"max_tokens": 64}, {"prompt": [1] * 513, "max_tokens": 1}):
        refused = t5.post("completions", body_of(model="t5", **changes))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "PROMPT_TOO_LONG")
