"""`python -m slipstream`: the command line where its script is not on the path."""

from slipstream.cli import main

main(prog_name="slipstream")
