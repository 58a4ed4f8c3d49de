"""The page in a real browser: it draws what the session did, can be used, and goes on while the session does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.report.page import report_page
from slipstream.report.view import session_structure
from slipstream.store import Store
from tests.report.browser import Browser, Page
from tests.report.made_up import made_up_session, play
from tests.report.test_server import TOKEN, running

PHONE, DESK = (390, 844), (1280, 900)


def opened(
    browser: Browser, directory: Path, tmp_path: Path, size: tuple[int, int] = DESK, theme: str = "light"
) -> Page:
    """The report of a session in a new tab."""
    page = browser.page(size, theme)
    show(page, directory, tmp_path)
    return page


def show(page: Page, directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(session_structure(directory)), encoding="utf-8")
    page.tab.goto(file.as_uri())
    page.until("!!window.slipstream")


@pytest.mark.parametrize(("size", "theme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_no_errors_no_requests_no_sideways_scrolling(
    browser: Browser, tuned: Any, tmp_path: Path, size: tuple[int, int], theme: str
) -> None:
    page = opened(browser, tuned[0].directory, tmp_path, size, theme)
    page.run("document.querySelectorAll('#operators .name').forEach((name, n) => n < 3 && name.click())")
    page.until("document.querySelectorAll('#operator-plot canvas').length === 1")
    assert page.run("document.documentElement.scrollWidth") == size[0]
    assert page.run("document.querySelectorAll('main > section, main > .pair > section').length") == 9
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (theme == "dark")
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.problems == []


def test_the_curve_is_drawn_where_it_should_be(browser: Browser, tuned: Any, tmp_path: Path) -> None:
    structure = session_structure(tuned[0].directory)
    page = opened(browser, tuned[0].directory, tmp_path)
    times, values = page.run("window.slipstream.charts.latency.plot.data")
    assert [list(point) for point in zip(times, values, strict=True)][:-1] == [p[:2] for p in structure["curve"]]
    # Half-way along each flat part there is ink on the line, and none well above it.
    on, off = page.run(
        """(() => {
          const plot = window.slipstream.charts.latency.plot, [x, y] = plot.data, ink = [28, 32, 36];
          const near = (px, py) => {
            const at = plot.ctx.getImageData(px - 1, py - 1, 3, 3).data;
            for (let i = 0; i < at.length; i += 4) if (ink.every((c, k) => Math.abs(at[i + k] - c) < 30)) return 1;
            return 0;
          };
          let on = [], off = [];
          for (let n = 0; n + 1 < x.length; n++) {
            const from = plot.valToPos(x[n], "x", true), to = plot.valToPos(x[n + 1], "x", true);
            if (to - from < 12) continue;
            on.push(near((from + to) / 2, plot.valToPos(y[n], "y", true)));
            off.push(near((from + to) / 2, plot.valToPos(y[n], "y", true) - 14));
          }
          return [on, off];
        })()"""
    )
    assert len(on) > 2
    assert all(on)
    assert not any(off)


def test_hovering_tells_the_value(browser: Browser, tuned: Any, tmp_path: Path) -> None:
    structure = session_structure(tuned[0].directory)
    page = opened(browser, tuned[0].directory, tmp_path)
    page.run("document.getElementById('latency').scrollIntoView({behavior: 'instant'})")
    n, operator = next((i, s[0]) for i, s in enumerate(structure["slots"]) if s[2] - s[1] > 0)
    start, end = structure["slots"][n][1:3]
    x, y = page.run(
        f"""(() => {{ const plot = window.slipstream.charts.latency.plot, box = plot.over.getBoundingClientRect();
        return [box.left + plot.valToPos({(start + end) / 2}, "x"), box.top + box.height / 2] }})()"""
    )
    page.tab.mouse.move(x, y)
    page.until("!document.getElementById('tip').hidden")
    said = page.run("document.getElementById('tip').textContent")
    assert structure["operators"][operator]["name"] in said
    assert "ms" in said
    page.tab.mouse.move(2, 2)
    page.until("document.getElementById('tip').hidden")


def test_filter_sort_and_keyboard(browser: Browser, tuned: Any, tmp_path: Path) -> None:
    structure = session_structure(tuned[0].directory)
    page = opened(browser, tuned[0].directory, tmp_path)
    names = "[...document.querySelectorAll('#operators .name .text')].map((name) => name.textContent)"
    page.tab.click("#filter")
    page.tab.keyboard.type("conv2d 1x1")
    wanted = {o["name"] for o in structure["operators"] if "conv2d" in o["name"] and "1x1" in o["name"]}
    assert wanted
    assert set(page.run(names)) == wanted
    page.run(
        "(() => { const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input')) })()"
    )
    page.tab.click("#operators th:nth-child(7) button")
    trials = {o["name"]: o["trials"] for o in structure["operators"]}
    order = [trials[name] for name in page.run(names)]
    assert order == sorted(order, reverse=True)
    assert page.run("document.querySelector('#operators th:nth-child(7)').getAttribute('aria-sort')") == "descending"
    # From the last header on, Tab reaches the first operator, and Enter opens it.
    page.run("document.querySelector('#operators th:last-child button').focus()")
    page.tab.keyboard.press("Tab")
    page.tab.keyboard.press("Enter")
    page.until("!!document.getElementById('schedule')")
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.run("document.querySelector('#timeline canvas').focus()")
    page.tab.keyboard.press("ArrowRight")
    assert page.run("document.querySelector('#timeline [role=status]').textContent").startswith("slot ")
    assert page.problems == []


def test_names_are_text(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=document.title='owned'>{n}"
    folder = made_up_session(tmp_path / "s", model="</script><script>document.title='owned'</script>", name=name).path
    page = opened(browser, folder, tmp_path)
    page.run("document.querySelectorAll('#operators .name')[0].click()")
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.run("document.querySelectorAll('main img, main b script, main script').length") == 0
    assert page.run("document.title") != "owned"
    assert page.run("document.querySelector('h1').textContent") == "</script><script>document.title='owned'</script>"
    assert "made up <b>failure</b>" in page.run("document.getElementById('failures').textContent")
    assert page.problems == []


def test_nothing_else_may_run(browser: Browser, tmp_path: Path) -> None:
    """The policy would stop a script that got in all the same."""
    page = opened(browser, made_up_session(tmp_path / "s").path, tmp_path)
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.got = 1'; "
        "document.body.append(s) })()"
    )
    page.run("(() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i) })()")
    assert page.run("window.got") is None
    page.until("true")
    assert any("Content Security Policy" in problem for problem in page.problems)


@pytest.mark.parametrize("operators", [0, 1])
def test_hardly_anything_to_show(browser: Browser, tmp_path: Path, operators: int) -> None:
    folder = made_up_session(tmp_path / "s", operators=operators, slots=0, status="running").path
    page = opened(browser, folder, tmp_path, PHONE)
    text = page.run("document.querySelector('main').innerText")
    assert "NaN" not in text
    assert "null" not in text
    assert "undefined" not in text
    assert "Infinity" not in text
    assert page.problems == []


def test_a_large_session_is_there_at_once(browser: Browser, large: Path, tmp_path: Path) -> None:
    """All the work until the page stands, in processor time: a busy machine is not the page's fault."""
    page = browser.page()
    counters = page.tab.context.new_cdp_session(page.tab)
    counters.send("Performance.enable", {"timeDomain": "threadTicks"})
    show(page, large, tmp_path)
    metrics = {m["name"]: m["value"] for m in counters.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 2.0
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    page.tab.click("#filter")
    page.tab.keyboard.type("conv2d 999→")
    assert page.run("document.querySelectorAll('#operators tbody tr').length") == 1
    assert page.problems == []


def test_it_goes_on_while_the_session_does(browser: Browser, tmp_path: Path) -> None:
    folder = made_up_session(tmp_path / "s", status="running")
    with running(folder.path) as server, Store.open(folder.store) as store, store.own(folder.session):
        page = browser.page()
        page.tab.goto(server.url)
        page.until("!!window.slipstream && window.slipstream.data.slots.length === 12")
        assert page.run("document.querySelector('.badge').textContent") == "running"
        page.tab.click("#filter")
        page.tab.keyboard.type("conv2d")
        page.run("document.querySelector('#operators .name').click()")
        hardware, keys = store.session(folder.session).hardware, list(store.session_operators(folder.session))
        play(store, folder.session, hardware, keys, range(12, 20), np.random.default_rng(1))
        store.update_session(folder.session, elapsed=45.0)
        page.until("window.slipstream.data.slots.length === 20")
        fresh = session_structure(folder.path)
        assert page.run("window.slipstream.data.curve") == fresh["curve"]
        assert page.run("window.slipstream.charts.latency.plot.data[1].length") == len(fresh["curve"]) + 1
        # What was typed and opened stays.
        assert page.run("document.getElementById('filter').value") == "conv2d"
        assert page.run("!!document.getElementById('schedule')")
        store.update_session(folder.session, status="finished", result={"reason": "the time is up"})
        page.until("document.querySelector('.badge').textContent === 'finished'")
        store.update_session(folder.session, result={"reason": "the last word"})
        server.ending.set()
        page.until("document.getElementById('live').textContent.startsWith('the server has ended')")
        assert "the last word" in page.run("document.getElementById('headline').innerText")
        assert page.problems == []


def test_two_sessions_side_by_side(browser: Browser, tmp_path: Path) -> None:
    made = [made_up_session(tmp_path / "all" / name, model="same") for name in ("one", "two")]
    with running(tmp_path / "all") as server:
        page = browser.page()
        page.tab.goto(server.url)
        page.until("document.querySelectorAll('main tbody tr').length === 2")
        for n in (1, 2):
            page.tab.click(f"main tbody tr:nth-child({n}) input")
        page.tab.click("main p button")
        page.until("!!window.slipstream && !!window.slipstream.a && !!window.slipstream.charts.compare")
        assert {page.run(f"window.slipstream.{side}.session.id") for side in "ab"} == {f.session for f in made}
        assert page.run("document.querySelectorAll('#compare-operators tbody tr').length") == 3
        assert page.problems == []


def test_without_the_token_there_is_nothing(browser: Browser, tmp_path: Path) -> None:
    folder = made_up_session(tmp_path / "s", model="secret")
    with running(folder.path, TOKEN) as server:
        page = browser.page()
        page.tab.goto(server.url.partition("?")[0])
        assert "secret" not in page.run("document.documentElement.outerHTML")
        assert page.run("fetch('/api/sessions').then((answer) => answer.status)") == 401
        page.tab.goto(server.url)
        page.until("!!window.slipstream && !!window.slipstream.data")
        assert page.run("document.querySelector('h1').textContent") == "secret"
        assert "token" not in page.run("location.href")
        assert page.run("document.cookie") == ""
        page.until("document.getElementById('live').textContent === 'live'")
        stranger = browser.page()
        stranger.tab.goto(f"{server.url.partition('?')[0]}api/session/{folder.session}")
        assert json.dumps("secret") not in stranger.run("document.body.innerText")
