"""The chat agent of `memory chat`: built on LangGraph and Kimi, with sessions in SQLite and facts
about the user as JSON lines.
"""

from importlib.util import find_spec
from pathlib import Path

from memories.errors import ConfigError
from memories.integrations.chat import settings
from memories.settings import Config


def start(config: Config, root: Path, env_file: Path | None, *, demo: bool, live: bool) -> int:
    """Chat with the user, or run the demos; return the exit code.

    Args:
        config: The settings of the memory.
        root: The folder whose settings apply.
        env_file: A settings file; None for the folder's own.
        demo: Whether to run the demos instead.
        live: Whether the demos use the real model.

    Raises:
        ConfigError: A package is missing, or a setting is invalid.
    """
    missing = [name for name in ("langgraph", "langchain_moonshot") if find_spec(name) is None]
    if missing:
        from memories.core.installation import install_command

        packages = " and ".join(missing)
        raise ConfigError(f"the chat needs {packages}; run: {install_command('chat')}")
    if demo:
        from memories.cli.output import say
        from memories.integrations.chat.demo import run as run_demos

        return 0 if run_demos(settings.read(root, env_file) if live else None, say) else 1
    from memories.integrations.chat.loop import Chat

    return Chat(settings.read(root, env_file), config.redactor()).run()
