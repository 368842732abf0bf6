"""Who asks: API keys to owners. Only hashes are kept, and every one of them is compared, each in constant time."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from http_edge.errors import InvalidApiKey
from http_edge.settings import Settings
from svckit.settings import SettingsError

DEFAULT_OWNER = "default"

_OWNER = re.compile(r"[A-Za-z0-9._@:-]{1,128}\Z")
_HASH = re.compile(r"sha256:[0-9a-fA-F]{64}\Z")


@dataclass(frozen=True, slots=True)
class Keys:
    """The owners by the SHA-256 of their keys; without any, everybody is the default owner."""

    owners: tuple[tuple[bytes, str], ...]

    def owner_of(self, headers: Mapping[str, str]) -> str:
        """The owner that a request's key belongs to. Raises InvalidApiKey, which never repeats the key."""
        if not self.owners:
            return DEFAULT_OWNER
        presented = hashlib.sha256(_presented(headers).encode("utf-8", "surrogateescape")).digest()
        found = [owner for digest, owner in self.owners if hmac.compare_digest(digest, presented)]
        if not found:
            raise InvalidApiKey(headers={"www-authenticate": "Bearer"})
        return found[0]


API_KEYS = web.AppKey("api_keys", Keys)


def read_keys(settings: Settings) -> Keys:
    """The keys of `[api_keys]` and of the keys file. Raises SettingsError."""
    owners: dict[bytes, str] = {}
    for source, owner, key in (*_listed(settings.api_keys), *_filed(settings.edge.keys_file)):
        if not _OWNER.match(owner):
            raise SettingsError(source, owner[:128], "an owner is 1 to 128 letters, digits or . _ @ : -")
        if owners.setdefault(_digest(source, owner, key), owner) != owner:
            raise SettingsError(source, owner, "this key belongs to another owner already")
    return Keys(tuple(owners.items()))


def _listed(sections: Mapping[str, str | tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    for owner, keys in sections.items():
        for key in keys.split(",") if isinstance(keys, str) else keys:
            yield "[api_keys]", owner, key.strip()


def _filed(path: str) -> Iterator[tuple[str, str, str]]:
    """Lines of `owner key-or-hash`; empty lines and lines that begin with # say nothing."""
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise SettingsError(path, f"line {number}", "must be an owner and a key, with a space between them")
        yield f"{path}: line {number}", words[0], words[1]


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text("utf-8").splitlines() if path else ()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError("settings", "edge.keys_file", f"{path} cannot be read") from exc


def _digest(source: str, owner: str, key: str) -> bytes:
    if not key:
        raise SettingsError(source, owner, "a key must not be empty")
    if _HASH.match(key):
        return bytes.fromhex(key.removeprefix("sha256:"))
    if key.startswith("sha256:"):
        raise SettingsError(source, owner, "sha256: must be followed by 64 hex digits")
    return hashlib.sha256(key.encode()).digest()


def _presented(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
