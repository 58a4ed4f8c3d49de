"""`slipstream fleet`: machines that build and measure together, as nodes of a Ray cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors

if TYPE_CHECKING:
    from slipstream.measure.fleet.look import NodeView
    from slipstream.measure.fleet.offer import Offer

_AGAIN_SECONDS = 5.0
_builders_option = click.option(
    "--builders", type=click.IntRange(min=0), help="Programs built here at a time. [default: one a core]"
)


@click.group()
def fleet() -> None:
    """Build and measure on several machines, as nodes of a Ray cluster: needs the extra 'fleet'.

    A fleet runs the code it is sent, as the user who started it: docs/fleet.md says how to keep others out.

    \b
    slipstream fleet start                        on one machine: the head
    slipstream fleet join HOST:PORT               on each machine that builds and measures; --rpc: near RPC devices
    slipstream tune MODEL -o OUT --fleet auto     on one of them
    slipstream fleet status                       what its nodes do
    """


@fleet.command("start")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="This machine's address. On any but loopback Ray listens on all interfaces.",
)
@click.option("--port", default=6379, show_default=True, help="The port that nodes join at.")
@click.option("--builders", type=click.IntRange(min=0), default=0, show_default=True, help="Programs built here.")
@click.option("--measure", "measures", is_flag=True, help="Measure on this machine too.")
@one_line_errors
def start(host: str, port: int, builders: int, measures: bool) -> None:
    """Start a cluster and keep it until Ctrl-C. By default only this machine reaches it, and it offers nothing."""
    from slipstream.measure.fleet.look import require_ray
    from slipstream.measure.fleet.offer import offer_of_this_machine
    from slipstream.measure.fleet.ray_connection import FleetError, is_loopback
    from slipstream.measure.fleet.start import check_token, head

    require_ray()
    check_token(host)
    offer = offer_of_this_machine(builders, measures=measures) if builders or measures else None
    with _until_asked_to_leave(), head(host, port, offer) as running:
        click.echo(f"the fleet is at {host}:{port}; {_described(offer) if offer else 'this machine offers nothing'}")
        click.echo(f"on each node: slipstream fleet join {host}:{port}")
        if not is_loopback(host):
            click.echo(
                "Ray listens on all interfaces: who reaches it and has the token can run any code here", err=True
            )
        click.echo("Ctrl-C ends it")
        raise FleetError(f"the head has ended: {running.wait()}")


@fleet.command("join")
@click.argument("address", metavar="HOST:PORT")
@_builders_option
@click.option("--measure/--no-measure", "measures", default=True, show_default=True, help="Measure on this machine.")
@click.option("--host", help="This machine's own address in the fleet's network. [default: Ray finds it]")
@click.option("--rpc", metavar="HOST:PORT", help="Measure on devices of the RPC tracker there, not on this machine.")
@click.option("--rpc-key", metavar="NAME", help="The key of those devices.")
@one_line_errors
def join(
    address: str, builders: int | None, measures: bool, host: str | None, rpc: str | None, rpc_key: str | None
) -> None:
    """Offer this machine to the fleet at HOST:PORT until Ctrl-C; should the fleet be lost, it tries to join again.

    It builds programs on all cores and, if a session tunes for hardware of its class, measures them; on a CPU one at
    a time, with building stopped meanwhile. With --rpc and --rpc-key it offers the devices of an RPC tracker near it in
    place of its own.
    """
    from slipstream.measure.choose import check_rpc
    from slipstream.measure.devices.rpc_tracker import parse_address
    from slipstream.measure.fleet.look import require_ray
    from slipstream.measure.fleet.offer import offer_near_rpc, offer_of_this_machine
    from slipstream.measure.fleet.ray_connection import FleetError
    from slipstream.measure.fleet.start import joined

    require_ray()
    parse_address(address, "")
    check_rpc(rpc, rpc_key)
    if rpc is not None and rpc_key is not None:
        offer = offer_near_rpc(rpc, rpc_key, builders)
    else:
        offer = offer_of_this_machine(builders, measures=measures)
    with _until_asked_to_leave():
        with joined(address, host, offer) as running:
            click.echo(f"joined {address}, now {_counted(len(running.nodes), 'node')}; offers {_described(offer)}")
            click.echo("Ctrl-C leaves")
            running.wait()
        said = _say(f"the fleet at {address} has gone; trying to join it again")
        while True:
            try:
                with joined(address, host, offer) as running:
                    click.echo(f"joined {address} again, now {_counted(len(running.nodes), 'node')}")
                    running.wait()
                said = _say(f"the fleet at {address} has gone; trying to join it again")
            except FleetError as error:
                said = _say(str(error), said)
            time.sleep(_AGAIN_SECONDS)


@fleet.command("status")
@click.argument("address", default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def status(address: str, as_json: bool) -> None:
    """Show the fleet's nodes, their devices, and what the sessions on them do."""
    from slipstream.measure.fleet.look import look

    views = look(address, stats=True)
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(view) for view in views], indent=1))
        return
    from slipstream.cli.tables import print_table

    columns = ("node", "devices", "state", "builders", "built", "measured", "a second", "failed")
    print_table(columns, [_row(view) for view in views], numeric=5)
    devices = sum(sum(view.node.devices.values()) for view in views)
    rate = sum(_rate(view.stats) for view in views)
    builders = sum(view.node.builders for view in views)
    counts = ((len(views), "node"), (builders, "builder"), (devices, "device"))
    click.echo(f"{', '.join(_counted(*one) for one in counts)}, {rate:.1f} trials a second")
    for view in views:
        if view.node.why_not:
            click.echo(f"not used: {view.node.why_not}")


def _row(view: NodeView) -> tuple[Any, ...]:
    node, stats = view.node, view.stats
    devices = ", ".join(f"{count} {name}" for name, count in node.devices.items()) or "none"
    state = "in use" if stats else "refused" if node.why_not else "idle"
    counts = [f"{stats.get(name, 0):.0f}" for name in ("built", "ran")]
    return (
        f"{node.address} ({node.id[:6]})",
        devices,
        state,
        node.builders,
        *counts,
        f"{_rate(stats):.1f}",
        f"{stats.get('failed', 0):.0f}",
    )


def _rate(stats: dict[str, float]) -> float:
    return stats.get("ran", 0.0) / stats["seconds"] if stats else 0.0


def _described(offer: Offer) -> str:
    devices = ", ".join(f"{count} of the class {name}" for name, count in offer.devices.items()) or "none"
    return f"{_counted(offer.builders, 'builder')}; devices to measure on: {devices}"


@contextmanager
def _until_asked_to_leave() -> Iterator[None]:
    """What is in the context ends when a signal asks for it."""
    for one in (signal.SIGINT, signal.SIGTERM):  # a shell has what it starts in the background ignore the first
        signal.signal(one, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("leaving")


def _say(text: str, before: str = "") -> str:
    """Say something unless it was said just before; what was said."""
    if text != before:
        click.echo(text, err=True)
    return text


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
