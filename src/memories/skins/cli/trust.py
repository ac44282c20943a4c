"""The command that lets the `.env` of a folder choose all settings: trust."""

from pathlib import Path

import click

from memories.errors import NotFound
from memories.skins.cli.options import command, format_option, option
from memories.skins.cli.output import confirm, emit, set_format


@command(epilog="memory trust\nmemory trust ~/work/shop --yes\nmemory trust --revoke\nmemory trust --list")
@click.argument("folder", default=".")
@option("--revoke", is_flag=True, help="Take it back.")
@option("--list", "listed", is_flag=True, help="List what is trusted.")
@option("--yes", is_flag=True, help="Do not ask.")
@format_option
def trust(folder: str, revoke: bool, listed: bool, yes: bool, output: str | None) -> None:
    """Let the .env of a folder choose every setting.

    Otherwise such a file may choose how many results there are and how they are printed, and nothing else: a folder
    that came from elsewhere could choose where memories are kept and sent. Any change of the file ends the trust.
    """
    from memories import trust as register
    from memories.config import registers, variables_of

    if output is not None:
        set_format(output)
    if listed:
        files = register.approved_files(registers())
        rows = [{"file": file, "sha256": digest} for file, digest in files.items()]
        emit({"trusted": rows}, lambda: "\n".join(files) or "No file is trusted.")
        return
    given = Path(folder).expanduser()
    file = (given / ".env" if given.is_dir() else given).absolute()
    if revoke:
        if not register.revoke(file, registers()):
            raise NotFound(f"{file} is not trusted")
        emit({"file": str(file), "trusted": False}, lambda: f"{file} is no longer trusted.")
        return
    found = register.read(file, registers())
    names = variables_of(found.values)
    question = f"Let {file} choose {', '.join(names) or 'no setting so far'}?"
    if yes or confirm(question, otherwise="Nothing was trusted.", why="this decides where memories are kept and sent"):
        digest = register.approve(file, registers())
        shape = {"file": str(file), "trusted": True, "sha256": digest, "settings": names}
        emit(shape, lambda: f"{file} is trusted as it is now.")


COMMANDS = (trust,)
