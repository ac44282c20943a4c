"""Writes `.env.example` from the table of settings: `python tools/env_example.py >.env.example`."""

from memories.settings import SETTINGS

HEAD = """\
# Settings of Memories. Copy this file to .env in the folder where you run `memory`; no other .env
# is read. To use a setting, remove the # before it. The values are the defaults; a setting without a
# default needs a value. `memory config` shows every setting, its value, and the value's source.
"""

# The effective defaults of settings whose default is not a constant.
UNSET = {
    "MEMORY_HOME": "the platform's data folder",
    "MEMORY_STORE": "sqlite:///$MEMORY_HOME/memories.db",
    "EMBEDDER_DIMENSIONS": "the model's own",
    "CONTEXT_TOKEN_BUDGET": "none",
}


def env_example() -> str:
    """Return the text of `.env.example`."""
    blocks = [HEAD]
    for setting in SETTINGS:
        default = setting.default
        value = (
            ""
            if default is None
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
        unset = f" (default: {UNSET[setting.variable]})" if setting.variable in UNSET else ""
        value = value.lower() if isinstance(default, bool) else value
        blocks.append(f"# {setting.purpose}{unset}\n# {setting.variable}={value}\n")
    return "\n".join(blocks)


if __name__ == "__main__":
    print(env_example(), end="")
