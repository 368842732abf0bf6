"""Settings of a service: `turnkeep.toml`, then `TURNKEEP_...` in the environment, then flags; the later one wins.

A room declares one frozen msgspec struct with a field per section; this file fills it and refuses, with the place and the reason, whatever
does not fit. It reads no environment by itself: the caller hands one in.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

ENV_PREFIX = "TURNKEEP_"

Sections = dict[str, dict[str, object]]
T = TypeVar("T", bound=msgspec.Struct)


class GrpcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[grpc]`: what every call between services must present. All empty: callers on this machine are trusted."""

    token: Annotated[str, msgspec.Meta(pattern="^[!-~]*$")] = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authority: str = ""


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: level (`debug` to `error`) and format (`json`, or `console` for people)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class SettingsError(Exception):
    """A setting does not fit; says where it stands, which it is, and why."""

    def __init__(self, source: str, key: str, reason: str) -> None:
        super().__init__(f"{source}: {key}: {reason}")
        self.source, self.key, self.reason = source, key, reason


def load(kind: type[T], *, file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Sections | None = None) -> T:
    """The settings struct `kind` from a file, an environment and flags. Raises SettingsError.

    Sections of the file that `kind` does not have belong to other rooms and are left alone; `check_sections` looks for those of none.
    """
    sections = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    layers = [(str(file), _from_file(file, sections))] if file else []
    layers += [("environment", _from_environment(environ or {}, sections)), ("flags", flags or {})]
    merged: Sections = {}
    for source, layer in layers:
        for section, values in layer.items():
            if section in sections:
                _check(sections[section], values, section, source)
                merged[section] = {**merged.get(section, {}), **values}
    return msgspec.convert(merged, kind, strict=False)


def check_sections(file: Path, kinds: tuple[type[msgspec.Struct], ...]) -> None:
    """Raises SettingsError for a section of `file` that no room knows."""
    known = {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}
    for section in _parsed(file):
        if section not in known:
            raise SettingsError(str(file), section, f"unknown section; known are {', '.join(sorted(known))}")


def environment() -> Mapping[str, str]:
    """The process's environment, for the callers of `load`."""
    return os.environ


def _from_file(file: Path, sections: Mapping[str, object]) -> Sections:
    layer: Sections = {}
    for section, values in _parsed(file).items():
        if section in sections:
            if not isinstance(values, dict):
                raise SettingsError(str(file), section, "must be a section, not a value")
            layer[section] = values
    return layer


def _parsed(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as exc:
        raise SettingsError(str(file), "(file)", exc.strerror or "cannot be read") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(str(file), "(file)", str(exc)) from exc


def _from_environment(environ: Mapping[str, str], sections: Mapping[str, object]) -> Sections:
    """`TURNKEEP_SECTION_KEY=value`; a list is separated by commas. Names of no section here belong to other rooms."""
    layer: Sections = {}
    for name, value in environ.items():
        section = _section_of(name, sections)
        if section is not None:
            key = name[len(ENV_PREFIX) + len(section) + 1 :].lower()
            layer.setdefault(section, {})[key] = _value(sections[section], key, value)
    return layer


def _section_of(name: str, sections: Mapping[str, object]) -> str | None:
    matching = [section for section in sections if name.startswith(f"{ENV_PREFIX}{section.upper()}_")]
    return max(matching, key=len, default=None)


def _value(kind: object, key: str, value: str) -> object:
    hint = _type_of(kind, key)
    if get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint) in (tuple, list):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _check(kind: object, values: Mapping[str, object], section: str, source: str) -> None:
    """Raises SettingsError for the first value that does not fit. A file has types; the environment and flags may give strings for them."""
    for key, value in values.items():
        hint = _type_of(kind, key)
        if hint is None:
            raise SettingsError(source, f"{section}.{key}", f"unknown key; known are {', '.join(get_type_hints(kind))}")
        try:
            msgspec.convert(value, hint, strict=source not in ("environment", "flags"))
        except msgspec.ValidationError as exc:
            reason, _, path = str(exc).partition(" - at `$")
            raise SettingsError(source, f"{section}.{key}{path.rstrip('`')}", reason) from exc


def _type_of(kind: object, key: str) -> object:
    """The type of one key of a section: a struct says it per field, a dictionary for all keys."""
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    return get_type_hints(kind, include_extras=True).get(key)
