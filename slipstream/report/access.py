"""Who may ask: everybody on this machine, or whoever has the token."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from slipstream.report.errors import ReportError

LEAST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> None:
    if len(token) < LEAST_TOKEN or not token.isascii() or not all(c.isalnum() or c in "-_." for c in token):
        raise ReportError(
            f"a token has at least {LEAST_TOKEN} letters, digits, '-', '_' or '.'; without --token one is made for you"
        )


@dataclass(frozen=True)
class Access:
    """With a token every request must bring it; without one only requests that name this machine are answered.

    The second is no formality: a page from elsewhere can make its own name point here, and must not read along.
    """

    token: str | None
    host: str
    port: int

    @property
    def cookie(self) -> str:
        """Servers on different ports share a browser's cookies, so each has a name of its own."""
        return f"slipstream-{self.port}"

    def allows(self, path: str, cookies: str, authorization: str, host: str) -> bool:
        if self.token is None:
            return self._is_here(host)
        return any(
            hmac.compare_digest(given.encode(errors="replace"), self.token.encode())
            for given in (self.in_query(path), self._in_cookie(cookies), authorization.removeprefix("Bearer "))
            if given
        )

    def in_query(self, path: str) -> str:
        return (parse_qs(urlsplit(path).query).get("token") or [""])[0]

    def _in_cookie(self, cookies: str) -> str:
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is_here(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self.host
