"""`python -m memories` is the `memory` command."""

from memories.skins.cli import main

main()
