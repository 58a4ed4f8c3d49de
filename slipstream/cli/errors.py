"""Error output of commands: one line with a remedy for a user's mistake instead of a traceback."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import click

from slipstream.cli.line_output import discard, has_no_reader
from slipstream.errors import SlipstreamError, cannot_access

P = ParamSpec("P")
R = TypeVar("R")

USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 2, 1, 130


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors as `error: ...` and exit; `--debug`, which this adds, shows the traceback too."""

    @click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        debug = bool(kwargs.pop("debug"))
        try:
            return command(*args, **kwargs)
        except SlipstreamError as error:
            fail(str(error), USER_ERROR, getattr(error, "remote_traceback", None) or traceback.format_exc(), debug)
        except KeyboardInterrupt:
            fail("interrupted; nothing was changed", INTERRUPTED, "", debug)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and has_no_reader(sys.stdout):
                discard(sys.stdout)
                sys.exit(0)  # `slipstream ... | head` has what it wanted
            if isinstance(error, OSError) and error.filename is not None:
                fail(cannot_access(error), USER_ERROR, traceback.format_exc(), debug)
            said = f"internal error: {type(error).__name__}: {error} (run again with --debug and report it)"
            fail(said, INTERNAL_ERROR, traceback.format_exc(), debug)

    return wrapped


def fail(message: str, code: int, details: str, debug: bool) -> NoReturn:
    """Print the error and exit."""
    if debug and details:
        click.echo(details, err=True)
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    sys.exit(code)
