"""`slipstream serve`."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.errors import one_line_errors


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a token.")
@click.option("--port", default=8765, show_default=True, help="Port to listen on; 0 for any that is free.")
@click.option("--token", envvar="SLIPSTREAM_TOKEN", help="What every request must bring [default: made if needed].")
@one_line_errors
def serve(directory: Path, host: str, port: int, token: str | None) -> None:
    """Show the sessions in DIRECTORY as a web page that follows them live, until Ctrl-C.

    DIRECTORY is a session's or one that holds several. Only this machine can reach the page; with another --host
    every request needs a token, which is part of the address that is printed.
    """
    import secrets

    from slipstream.report.access import check_token, is_loopback
    from slipstream.report.errors import ReportError
    from slipstream.report.server import Server, stay_in_the_background
    from slipstream.report.sessions import session_directories

    if not directory.is_dir():
        raise ReportError(f"there is no directory {directory}: give a session's, or one that holds several")
    if not session_directories(directory):
        click.echo(f"there is no session in {directory} yet; the page shows those that begin", err=True)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    if token is not None:
        check_token(token)
    with Server(directory.absolute(), host, port, token) as server:
        click.echo(f"{server.url}  (Ctrl-C ends it)")
        stay_in_the_background()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.ending.set()
