"""`slipstream completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: slipstream completion bash > ~/.local/share/bash-completion/completions/slipstream
    zsh:  slipstream completion zsh > a file '_slipstream' in a directory of $fpath
    fish: slipstream completion fish > ~/.config/fish/completions/slipstream.fish
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(ctx.find_root().command, {}, "slipstream", "_SLIPSTREAM_COMPLETE").source())
