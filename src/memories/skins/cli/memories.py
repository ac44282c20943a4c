"""Commands that change memories: create, update, reinforce, delete, restore, forget."""

from collections.abc import Mapping, Sequence

import click

from memories.skins import shapes
from memories.skins.cli.options import in_session, memory_id, share, tag_options
from memories.skins.cli.session import Session, confirm, note, read_argument, texts

NOT_STORED = 3


@click.command(epilog='Example: memory create "Deploys happen on Tuesdays" --project shop --type fact')
@click.argument("content")
@tag_options
@click.option("--decay", metavar="POLICY", help="stable (if nothing is said), contextual or reinforceable.")
@click.option("--key", metavar="KEY", help="Its address, such as user/editor; one in use gets a new version.")
@click.option("--supersedes", metavar="ID", help="A memory that this one replaces.")
@click.option("--confidence", metavar="0..1", help="How sure you are; 1 if nothing is said.")
@click.option("--force", is_flag=True, help="Store it even if it is there already.")
@in_session(reads=False)
def create(
    run: Session,
    content: str,
    tags: Mapping[str, str],
    decay: str | None,
    key: str | None,
    supersedes: str | None,
    confidence: str | None,
    force: bool,
) -> int:
    """Store a memory; - reads it from standard input."""
    created = run.memories.create(
        read_argument(content, "content"),
        tags=tags,
        decay=decay,
        key=key,
        supersedes=supersedes,
        confidence=share(confidence, "confidence"),
        force=force,
    )
    run.show(shapes.created(created), lambda: texts().created(created))
    return 0 if created.memory is not None else NOT_STORED


@click.command(epilog='Example: memory update 01a1fdf1-92cd-72f2 "Deploys happen on Thursdays"')
@memory_id
@click.argument("content", required=False)
@tag_options
@click.option("--remove-tag", metavar="KEY", multiple=True, help="A tag to take away; may be repeated.")
@in_session(reads=True)
def update(
    run: Session, memory_id: str, content: str | None, tags: Mapping[str, str], remove_tag: Sequence[str]
) -> None:
    """Append a new version to a memory."""
    text = None if content is None else read_argument(content, "content")
    memory = run.memories.update(memory_id, text, tags=tags, remove_tags=remove_tag)
    run.show(shapes.memory(memory), lambda: texts().memory(memory))


@click.command(epilog="Example: memory reinforce 01a1fdf1-92cd-72f2")
@memory_id
@in_session(reads=True)
def reinforce(run: Session, memory_id: str) -> None:
    """Reset the decay of a reinforceable memory."""
    memory = run.memories.reinforce(memory_id)
    run.show(shapes.reinforced(memory), lambda: texts().memory(memory))


@click.command(epilog="Example: memory delete 01a1fdf1-92cd-72f2")
@memory_id
@in_session(reads=True)
def delete(run: Session, memory_id: str) -> None:
    """Delete a memory; restore brings it back."""
    memory = run.memories.delete(memory_id)
    run.show({"id": memory.id, "deleted": True}, lambda: texts().deleted(memory))


@click.command(epilog="Example: memory restore 01a1fdf1-92cd-72f2")
@memory_id
@in_session(reads=True)
def restore(run: Session, memory_id: str) -> None:
    """Bring a deleted or superseded memory back."""
    memory = run.memories.restore(memory_id)
    run.show(shapes.memory(memory), lambda: texts().memory(memory))


@click.command(epilog="Example: memory forget 01a1fdf1-92cd-72f2 --yes")
@memory_id
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@in_session(reads=True)
def forget(run: Session, memory_id: str, yes: bool) -> None:
    """Remove a memory for good, every byte of it."""
    if not yes and not confirm(texts().forget_question(run.memories.history(memory_id))):
        note("Nothing was forgotten.")
        return
    forgotten = run.memories.forget(memory_id)
    run.show(shapes.forgotten(forgotten), lambda: f"Forgotten for good: {forgotten.id}")
    if forgotten.also_in:
        note(
            f"What may still hold it, from before an upgrade or a move, or in a server: {', '.join(forgotten.also_in)}"
        )


COMMANDS = (create, update, reinforce, delete, restore, forget)
