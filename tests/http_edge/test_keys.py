"""API keys to owners, and the door that stays shut without them."""

import hashlib
from pathlib import Path

import pytest

from http_edge.app import open_edge
from http_edge.auth import DEFAULT_OWNER, read_keys
from http_edge.errors import InvalidApiKey
from http_edge.settings import EdgeSettings, Settings, refuse_open_door
from svckit.settings import SettingsError, load

HASH = "sha256:" + hashlib.sha256(b"sk-hashed").hexdigest()


def test_a_key_names_its_owner_as_bearer_or_as_header() -> None:
    keys = read_keys(Settings(api_keys={"ada": ("sk-1", "sk-2"), "bob": HASH, "eve": "sk-3, sk-4"}))
    asked = [
        {"Authorization": "Bearer sk-1"},
        {"Authorization": "bearer  sk-2 "},
        {"x-api-key": "sk-hashed"},
        {"Authorization": "Bearer sk-hashed", "x-api-key": "sk-1"},
        {"Authorization": "Basic eDp5", "x-api-key": "sk-4"},
    ]
    assert [keys.owner_of(headers) for headers in asked] == ["ada", "ada", "bob", "bob", "eve"]


@pytest.mark.parametrize("presented", ["", "sk-0", "SK-1", "sk-1x", HASH, "é", "\udcff"])
def test_any_other_key_is_refused(presented: str) -> None:
    keys = read_keys(Settings(api_keys={"ada": ("sk-1",), "bob": (HASH,)}))
    for headers in ({"Authorization": f"Bearer {presented}"}, {"x-api-key": presented}, {}):
        with pytest.raises(InvalidApiKey):
            keys.owner_of(headers)


def test_without_keys_everybody_is_the_default_owner() -> None:
    keys = read_keys(Settings())
    assert [keys.owner_of(headers) for headers in ({}, {"Authorization": "Bearer anything"})] == [DEFAULT_OWNER] * 2


def test_a_keys_file_has_a_line_per_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may come in\n\nada sk-1\n  bob\t{HASH}\nada sk-5\n")
    keys = read_keys(Settings(edge=EdgeSettings(keys_file=str(file)), api_keys={"eve": "sk-3"}))
    assert [keys.owner_of({"x-api-key": key}) for key in ("sk-1", "sk-hashed", "sk-5", "sk-3")] == ["ada", "bob", "ada", "eve"]


@pytest.mark.parametrize("line", ["ada", "ada sk-1 more", "a/b sk-1", "ada sha256:12", "eve sk-3"])
def test_a_line_that_does_not_fit_stops_the_start(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(SettingsError) as caught:
        read_keys(Settings(edge=EdgeSettings(keys_file=str(file)), api_keys={"bob": "sk-3"}))
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("api_keys", [{"ada": ""}, {"ada": ("",)}, {"": "sk-1"}, {"ada": "sha256:xyz"}, {"ada": "sk-1", "bob": "sk-1"}])
def test_a_setting_that_does_not_fit_stops_the_start(api_keys: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        read_keys(Settings(api_keys=api_keys))


def test_a_keys_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read_keys(Settings(edge=EdgeSettings(keys_file=str(tmp_path / "none"))))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_an_open_door_needs_keys_or_the_word_insecure(host: str) -> None:
    with pytest.raises(SettingsError):
        refuse_open_door(EdgeSettings(host=host), has_keys=False)
    refuse_open_door(EdgeSettings(host=host), has_keys=True)
    refuse_open_door(EdgeSettings(host=host, insecure=True), has_keys=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_neither(host: str) -> None:
    refuse_open_door(EdgeSettings(host=host), has_keys=False)


async def test_an_open_door_stops_the_start() -> None:
    with pytest.raises(SettingsError):
        async with open_edge(Settings(edge=EdgeSettings(host="0.0.0.0", port=0))):
            pass


async def test_a_port_in_use_stops_the_start() -> None:
    async with open_edge(Settings(edge=EdgeSettings(port=0))) as edge:
        with pytest.raises(SettingsError):
            async with open_edge(Settings(edge=EdgeSettings(port=int(edge.url.rpartition(":")[2])))):
                pass


def test_settings_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "turnkeep.toml"
    file.write_text('[edge]\nport = 1\ncors_origins = ["https://a"]\n[api_keys]\nada = ["sk-1"]\n[history]\nlisten = "x"\n')
    settings = load(Settings, file=file, environ={"TURNKEEP_EDGE_PORT": "2", "TURNKEEP_API_KEYS_BOB": "sk-2"})
    assert (settings.edge.port, settings.edge.cors_origins) == (2, ("https://a",))
    assert [read_keys(settings).owner_of({"x-api-key": key}) for key in ("sk-1", "sk-2")] == ["ada", "bob"]


@pytest.mark.parametrize("text", ["[edge]\nprot = 1", "[edge]\nport = 70000", "[edge]\ndrain_seconds = -1", "[api_keys]\nada = 3"])
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "turnkeep.toml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        load(Settings, file=file)
