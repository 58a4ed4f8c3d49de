"""Where a store is: an SQLite file, or a PostgreSQL database named by a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

from slipstream.store.errors import StoreError

_SCHEMES = ("postgresql", "postgres")
_SECRETS = ("password", "sslpassword")
_EXAMPLE = "postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True)
class PostgresUrl:
    """A PostgreSQL database. `text` is the URL without what is secret in it; `secrets` are those options by name."""

    text: str
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        """Take a URL apart. A message never repeats what could be part of a password."""
        scheme, _, rest = url.partition("://")
        if scheme.lower() not in _SCHEMES:
            raise StoreError(f"a store cannot be at {scheme}://...: give a file, or {_EXAMPLE}")
        authority, path, query = re.fullmatch(r"([^/?#]*)([^?#]*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
        user, at, hosts = authority.rpartition("@")
        if "@" in path + query or any(not re.fullmatch(r"(.*\]|[^:]*)(:\d*)?", host) for host in hosts.split(",")):
            raise StoreError(
                f"the store's URL cannot be read: write it as {_EXAMPLE}, and @ : / ? # % in a password as %40 %3A "
                "%2F %3F %23 %25"
            )
        name, _, password = user.partition(":")
        secrets = [("password", unquote(password))] if password else []
        others: list[tuple[str, str]] = []
        for key, value in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
            (secrets if key in _SECRETS else others).append((key, value))
        options = f"?{urlencode(others, quote_via=quote, safe='/')}" if others else ""
        return cls(f"postgresql://{name}{at}{hosts}{path}{options}", tuple(secrets))


StoreLocation: TypeAlias = Path | PostgresUrl


def store_location(given: str | Path | PostgresUrl) -> StoreLocation:
    """A store as a person names it."""
    if isinstance(given, PostgresUrl):
        return given
    text = str(given)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        return PostgresUrl.parse(text)
    if re.match(rf"({'|'.join(_SCHEMES)}):/", text):
        raise StoreError(f"a URL is no path: give the store as text, {_EXAMPLE}")
    return Path(given)


def without_password(word: str) -> str:
    """A word of a command line as it may be shown to others."""
    found = re.search(r"postgres(ql)?:/", word)
    if found is None:
        return word
    try:
        return word[: found.start()] + str(store_location(word[found.start() :]))
    except StoreError:
        return f"{word[: found.start()]}postgresql://..."
