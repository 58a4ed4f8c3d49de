"""The page: one HTML file with everything in it. No request goes out; nothing in the data can become markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from slipstream.version import VERSION

_STYLES = ("uplot/uPlot.min.css", "page.css")
_LIBRARY = "uplot/uPlot.iife.min.js"
_SCRIPTS = (
    "dom.js",
    "units.js",
    "palette.js",
    "charts.js",
    "shapes.js",
    "headline.js",
    "latency.js",
    "timeline.js",
    "program.js",
    "operators.js",
    "families.js",
    "spent.js",
    "roofline.js",
    "environment.js",
    "compare.js",
    "sessions.js",
    "live.js",
    "main.js",
)


def report_page(structure: dict[str, Any]) -> str:
    """A page that shows one session, to be opened from disk."""
    title = f"{structure['session']['model']}: {structure['session']['name']} – Slipstream"
    return _page(title, {"slipstream": VERSION, "live": False, "session": structure}, "")


def live_page() -> str:
    """The page a server sends for every view; it asks for its data."""
    return _page("Slipstream", {"slipstream": VERSION, "live": True}, "; connect-src 'self'")


def _page(title: str, data: dict[str, Any], more_policy: str) -> str:
    parts = {
        "POLICY": _policy() + more_policy,
        "TITLE": html.escape(title),
        "STYLE": _style(),
        "DATA": embed(data),
        "SCRIPT": _script(),
    }
    return re.sub(r"%(POLICY|TITLE|STYLE|DATA|SCRIPT)%", lambda match: parts[match[1]], _read("page.html"))


def embed(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever it holds."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _policy() -> str:
    """Nothing but this page's own script and style runs, and nothing is loaded from anywhere."""
    return (
        f"default-src 'none'; script-src '{_hash(_script())}'; style-src '{_hash(_style())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _style() -> str:
    return "\n".join(_read(name) for name in _STYLES)


@cache
def _script() -> str:
    own = "\n".join(_read(name) for name in _SCRIPTS)
    return f'{_read(_LIBRARY)}\n(() => {{\n"use strict";\n{own}\nstart();\n}})();'


@cache
def _read(name: str) -> str:
    return (files("slipstream.report") / "web" / name).read_text(encoding="utf-8")
