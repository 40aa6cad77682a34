"""Keys: a line each, all compared, none shown."""

from pathlib import Path

import pytest

from tmmu.errors import InvalidConfig, KeyRefused
from tmmu.server import keys as module
from tmmu.server.admission.rights import DEFAULT_RIGHTS, ClientRights
from tmmu.server.keys import read_keys

FIRST, SECOND = "a" * 16, "b" * 20


def ring(tmp_path: Path, text: str) -> module.KeyRing:
    path = tmp_path / "keys"
    path.write_text(text)
    return read_keys(path)


def test_clients_are_called_by_the_number_of_their_key(tmp_path: Path) -> None:
    keys = ring(tmp_path, f"# who\n\n {FIRST} \n{SECOND}\n")
    assert (len(keys), keys.client_of(FIRST), keys.client_of(SECOND)) == (2, "key-1", "key-2")
    for stranger in ("", FIRST[:-1], FIRST + "a", "\ud800", "# who"):
        with pytest.raises(KeyRefused):
            keys.client_of(stranger)
    assert FIRST not in repr(vars(keys))


def test_every_key_is_compared_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, compared = ring(tmp_path, f"{FIRST}\n{SECOND}\n"), []
    original = module.compare_digest
    monkeypatch.setattr(module, "compare_digest", lambda a, b: bool(compared.append(1)) or original(a, b))
    keys.client_of(FIRST)
    assert len(compared) == 2


def test_rights_follow_the_key(tmp_path: Path) -> None:
    keys = ring(tmp_path, f"{FIRST}\n{SECOND} weight=2  class=batch\n")
    assert keys.rights_of("key-1") == DEFAULT_RIGHTS
    assert keys.rights_of("key-2") == ClientRights(weight=2, highest="batch")
    for words in ("weight", "weight=x", "weight=1 weight=2", "quota=1 b"):
        with pytest.raises(InvalidConfig, match="line 1"):
            ring(tmp_path, f"{FIRST} {words}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no keys"), ("# a\n", "no keys"), ("short\n", "line 1"), (f"{FIRST}\n{FIRST}\n", "line 2"),
     ("ä" * 20, "line 1"), ("a b" * 8, "line 1")],
)  # fmt: skip
def test_files_of_no_keys_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        ring(tmp_path, text)


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff" * 20)
    with pytest.raises(InvalidConfig, match="no text"):
        read_keys(tmp_path / "keys")
