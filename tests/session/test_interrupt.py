"""Signals while tuning: the first is noted, the second ends, an ignored one stays ignored."""

from __future__ import annotations

import signal
import threading

import pytest

from slipstream.session.interrupt import Interrupt

pytestmark = pytest.mark.usefixtures("ordinary_signals")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_the_second_ends(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interrupt() as interrupt:
        assert not interrupt.asked()
        signal.raise_signal(number)
        assert interrupt.asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    """As under nohup: the terminal may close."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.asked()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_to_the_main_one() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
