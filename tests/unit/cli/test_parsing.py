from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell
from tmmu.cli import parsing as options
from tmmu.errors import InvalidConfig, InvalidToken


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("models/gpt2.py", "file", "gpt2"),
        ("models/net.py:Net", "class", "net.Net"),
        ("hf:configs/llama/config.json", "hf", "llama"),
        ("hf:configs/llama", "hf", "llama"),
        ("a.b.pt2", "pt2", "a.b"),
        ("gpt2.ir.cbor", "ir", "gpt2"),
    ],
)
def test_target_names_its_outputs(text: str, kind: str, name: str) -> None:
    target = options.parse_model(text)
    assert (target.kind, target.name, target.text) == (kind, name, text)


def test_config_in_the_current_folder_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "olmo"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert options.parse_model("hf:config.json").name == "olmo"
    assert options.parse_model("hf:.").name == "olmo"


@pytest.mark.parametrize("text", ["", "model", "model.onnx", "model.py:", "model.py:not a name", ".py", "hf"])
def test_unknown_kind_of_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="no such kind of model"):
        options.parse_model(text)


def test_settings_are_pairs_in_the_order_given() -> None:
    assert options.parse_settings(["seq=8", "name=a=b", "empty="]) == (("seq", "8"), ("name", "a=b"), ("empty", ""))


@pytest.mark.parametrize("texts", [["seq"], ["=8"], ["a b=1"], ["seq=1", "seq=2"]])
def test_setting_that_is_no_pair_or_comes_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="--set"):
        options.parse_settings(texts)


@pytest.mark.parametrize(
    ("text", "says"), [("config=f(x)", "x is no literal"), ("config=a.f()", "a.f() is no literal")]
)
def test_setting_that_is_no_value_is_refused_before_anything_starts(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        options.parse_settings([text])
    assert str(refusal.value) == (
        f"INVALID_CONFIG: --set config: {says} "
        "(call a name of the file on literals, as in GPTConfig(n_layer=4); in quotes it is a text)"
    )


def test_token_comes_from_a_seed_hex_or_a_file(tmp_path: Path) -> None:
    token = bytes(range(64))
    file = tmp_path / "token"
    file.write_bytes(token)
    assert options.parse_token(None, token.hex(), None) == token
    assert options.parse_token(None, None, file) == token
    assert len(options.parse_token(2**64 - 1, None, None) or b"") == 64
    assert options.parse_token(None, None, None) is None


@pytest.mark.parametrize("token", ["00" * 63, "0" * 127, "not hex", ""])
def test_token_that_is_short_or_not_hex_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken, match="--token"):
        options.parse_token(None, token, None)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(InvalidToken, match=f"--seed: .*{seed}"):
        options.parse_token(seed, None, None)


def test_token_file_must_be_readable_and_small(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--token-file"):
        options.parse_token(None, None, tmp_path / "none")
    big = tmp_path / "big"
    big.write_bytes(bytes(options.TOKEN_FILE_MAX + 1))
    with pytest.raises(InvalidToken, match="--token-file"):
        options.parse_token(None, None, big)


def test_token_is_named_by_one_option_only() -> None:
    with pytest.raises(InvalidConfig, match="--seed and --token"):
        options.parse_token(0, "00" * 64, None)


@pytest.mark.parametrize(
    ("text", "size"), [(None, 1 << 30), ("0", 0), ("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("1.5GiB", 3 << 29)]
)
def test_reserve_is_a_size(text: str | None, size: int) -> None:
    assert options.parse_reserve(text) == size


@pytest.mark.parametrize("text", ["much", "-1", "1.5", "8Gi", str(2**64), "9" * 5000])
def test_reserve_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--reserve"):
        options.parse_reserve(text)


@pytest.mark.parametrize("value", [0, -1, 2**31])
def test_count_is_at_least_one(value: int) -> None:
    with pytest.raises(InvalidConfig, match=f"--batch: {value}"):
        options.require_count(value, "--batch")


def test_plan_and_its_graph_lie_together(tmp_path: Path) -> None:
    target = options.parse_model("models/gpt2.py")
    assert options.plan_path(None, target) == Path("gpt2.plan.cbor")
    assert options.plan_path(str(tmp_path), target) == tmp_path / "gpt2.plan.cbor"
    assert options.plan_path("out/x.plan.cbor", target) == Path("out/x.plan.cbor")
    assert options.ir_path(None, Path("out/x.plan.cbor")) == Path("out/x.ir.cbor")
    assert options.ir_path(None, Path("out/x")) == Path("out/x.ir.cbor")
    assert options.ir_path(Path("y"), Path("out/x")) == Path("y")


def test_slash_at_the_end_names_a_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = options.parse_model("net.py")
    for text in ("out/", "out/.", ""):
        with pytest.raises(InvalidConfig, match="--output: no f"):
            options.plan_path(text, target)
    Path("out").mkdir()
    assert options.plan_path("out/", target) == options.plan_path("out", target) == Path("out/net.plan.cbor")


def test_plan_for_a_device_has_no_graph_beside_it() -> None:
    assert options.graph_output(None, Path("/dev/null")) is None
    assert options.graph_output("graph", Path("/dev/null")) == Path("graph")
    assert options.graph_output(None, Path("x.plan.cbor")) == Path("x.ir.cbor")


@pytest.mark.parametrize("text", ["8bit", "adamw:", "", ":fused", "adam w"])
def test_optimizer_without_a_name_or_items_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"is not NAME\[:ITEM,\.\.\.\]"):
        options.parse_optimizer_text(text)


def test_optimizer_texts_pass_unchanged() -> None:
    assert options.parse_optimizer_text(None) is None
    assert options.parse_optimizer_text("sgd:momentum=0.9,nesterov=true") == "sgd:momentum=0.9,nesterov=true"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("--optimizer", "sgd"), "add --mode backward, or leave it out"),
        (("--optimizer", "sgd", "--mode", "forward"), "use --mode backward, or leave it out"),
    ],
)
def test_option_without_the_one_that_it_goes_with_says_which_to_add(
    shell: Shell, words: tuple[str, ...], fix: str
) -> None:
    refused = shell.tmmu("plan", "net.py", *words)
    assert refused.code == 2
    assert refused.err == f"tmmu: INVALID_CONFIG: --optimizer: only with --mode backward ({fix})\n"


def test_cache_length_without_decoding_says_what_to_add(shell: Shell) -> None:
    refused = shell.tmmu("plan", "hf:.", "--cache-len", "8")
    assert refused.err == ("tmmu: INVALID_CONFIG: --cache-len: only with --decode (add --decode, or leave it out)\n")
