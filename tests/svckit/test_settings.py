"""Settings come from file, environment and flags, and whatever does not fit is refused with its place and reason."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from svckit.settings import GrpcSettings, LogSettings, Sections, SettingsError, check_sections, load


class ShopSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 80
    wait_seconds: float = 1.5
    is_open: bool = True
    name: str = "shop"
    goods: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True):
    shop: ShopSettings = ShopSettings()
    shop_keys: dict[str, tuple[str, ...]] = {}
    log: LogSettings = LogSettings()


def written(directory: Path, text: str) -> Path:
    file = directory / "turnkeep.toml"
    file.write_text(text, "utf-8")
    return file


def test_without_anything_the_defaults_hold() -> None:
    assert load(Settings) == Settings()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[shop]\nport = 1\nname = "file"\nwait_seconds = 7\n')
    environ = {"TURNKEEP_SHOP_PORT": "2", "TURNKEEP_SHOP_NAME": "environment", "PATH": "/bin"}
    loaded = load(Settings, file=file, environ=environ, flags={"shop": {"port": 3}})
    assert loaded.shop == ShopSettings(port=3, name="environment", wait_seconds=7.0)


def test_strings_of_the_environment_become_what_the_key_asks_for() -> None:
    environ = {
        "TURNKEEP_SHOP_PORT": "8080",
        "TURNKEEP_SHOP_WAIT_SECONDS": "0.25",
        "TURNKEEP_SHOP_IS_OPEN": "false",
        "TURNKEEP_SHOP_GOODS": "tea, milk,",
        "TURNKEEP_SHOP_KEYS_ADA": "a,b",
    }
    loaded = load(Settings, environ=environ)
    assert loaded.shop == ShopSettings(8080, 0.25, False, "shop", ("tea", "milk"))
    assert loaded.shop_keys == {"ada": ("a", "b")}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[shop]\nport = "80"', "shop.port"),
        ("[shop]\nport = 80.5", "shop.port"),
        ("[shop]\nport = 70000", "shop.port"),
        ("[shop]\nname = 3", "shop.name"),
        ('[shop]\nis_open = "yes"', "shop.is_open"),
        ('[shop]\ngoods = "tea"', "shop.goods"),
        ("[shop]\ngoods = [1]", "shop.goods[0]"),
        ("[shop]\nprot = 80", "shop.prot"),
        ("shop = 80", "shop"),
        ('[log]\nlevel = "loud"', "log.level"),
        ("[shop", "(file)"),
    ],
)
def test_what_does_not_fit_in_the_file_is_refused_with_file_key_and_reason(tmp_path: Path, text: str, key: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SettingsError) as raised:
        load(Settings, file=file)
    assert (raised.value.source, raised.value.key) == (str(file), key)
    assert raised.value.reason
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("TURNKEEP_SHOP_PORT", "many", "shop.port"),
        ("TURNKEEP_SHOP_PORT", "", "shop.port"),
        ("TURNKEEP_SHOP_PROT", "80", "shop.prot"),
        ("TURNKEEP_LOG_FORMAT", "xml", "log.format"),
    ],
)
def test_what_does_not_fit_in_the_environment_is_refused(name: str, value: str, key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(Settings, environ={name: value})
    assert (raised.value.source, raised.value.key) == ("environment", key)


def test_a_wrong_flag_is_refused() -> None:
    flags: Sections = {"shop": {"port": -1}}
    with pytest.raises(SettingsError) as raised:
        load(Settings, flags=flags)
    assert (raised.value.source, raised.value.key) == ("flags", "shop.port")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        load(Settings, file=tmp_path / "none.toml")
    assert raised.value.source.endswith("none.toml")


def test_sections_of_other_rooms_are_left_alone_and_those_of_none_are_refused(tmp_path: Path) -> None:
    class Other(msgspec.Struct, frozen=True):
        grpc: GrpcSettings = GrpcSettings()

    file = written(tmp_path, "[grpc]\n[shop]\nport = 5\n")
    assert load(Settings, file=file).shop.port == 5
    check_sections(file, (Settings, Other))
    with pytest.raises(SettingsError) as raised:
        check_sections(file, (Settings,))
    assert raised.value.key == "grpc"


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    class Guarded(msgspec.Struct, frozen=True):
        grpc: GrpcSettings = GrpcSettings()

    with pytest.raises(SettingsError) as raised:
        load(Guarded, environ={"TURNKEEP_GRPC_TOKEN": "ключ"})
    assert raised.value.key == "grpc.token"
