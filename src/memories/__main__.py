"""`python -m memories` is the `memory` command."""

from memories.cli import main

main()
