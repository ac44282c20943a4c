"""Settings: an option overrides the environment, then `.env`, then `config.toml`, then the
default.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from memories.core.urls import local_path, slashes_hint
from memories.errors import ConfigError, InvalidInput
from memories.guard import validate
from memories.settings import SETTINGS, Config, HalfLife, Setting
from memories.settings import namespace as _namespace

if TYPE_CHECKING:
    from memories.guard.rules import Rule


def load_config(
    flags: Mapping[str, str | None] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    tell: Callable[[str], None] = warn,
) -> Config:
    """Gather the settings.

    Args:
        flags: Settings by name, as text; None values count as not given.
        environment: Used instead of the process's own.
        folder: Where `.env` is looked for, never in its parents; the working directory by default.
            What could do harm counts only after `memory trust`.
        tell: Called with a sentence on the settings that were ignored, if there are any.

    Raises:
        ConfigError: A setting is not acceptable; the message says which one and where it came from.
    """
    environment = os.environ if environment is None else environment
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
        ("environment", _by_name(environment)),
    ]
    home, _ = _first(SETTINGS[0], layers)
    dotenv, ignored, why = _dotenv(folder or _working_folder(), home or _platform_folder("config"))
    layers.append((".env", dotenv))
    home, source = _first(SETTINGS[0], layers)
    file = (home or _platform_folder("config")) / "config.toml"
    toml = _toml(file)
    redact_rules = toml.pop(_RULES, ())
    layers.append((str(file), toml))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        values[setting.name], sources[setting.name] = _first(setting, layers)
    if (reinforceable := values["decay_reinforceable_hours"]) is not None:
        values["decay_half_life_hours"] = HalfLife(values["decay_half_life_hours"], reinforceable)
    values["home"] = home or values["home"] or _platform_folder("data")
    from memories.core.trust import home_in_doubt

    if doubt := home_in_doubt(values["home"]):
        raise ConfigError(doubt)
    sources["home"] = source if home else sources["home"]
    if values["store"] is None:
        values["store"], sources["store"] = _default_store(values, sources)
    if hint := slashes_hint(values["store"]):
        tell(hint)
    if note := _describe_ignored(ignored, why, values["embedder"]):
        tell(note)
    identity = values["namespace"]
    if sources["namespace"] == "flag":
        identity = _identity(layers[1:])
    elif sources["namespace"] == "default":
        identity = None
    return Config(**values, sources=sources, identity=identity, redact_rules=redact_rules)


def _identity(layers: list[tuple[str, Mapping[str, Any]]]) -> str | None:
    """Return the namespace that is set below the flags, if any; one that a flag overrides need not
    be acceptable.
    """
    name = next((str(values["namespace"]) for _, values in layers if "namespace" in values), None)
    try:
        return None if name is None else _namespace(name)
    except ValueError:
        return None


def _default_store(values: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[str, str]:
    """Return the store that follows from other settings: Chroma if its host or port is set, else a
    file.
    """
    for name in ("chromadb_host", "chromadb_port"):
        if sources[name] != "default":
            return f"chroma://{values['chromadb_host']}:{values['chromadb_port']}", sources[name]
    return f"sqlite:///{values['home'] / values['collection_name']}.db", "default"


def variables_of(values: Mapping[str, str]) -> list[str]:
    """Return the variables of these that are settings."""
    return [setting.variable for setting in SETTINGS if setting.variable in values]


def _by_name(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        setting.name: variables[setting.variable]
        for setting in SETTINGS
        if setting.variable in variables
    }


def _first(setting: Setting, layers: list[tuple[str, Mapping[str, Any]]]) -> tuple[Any, str]:
    """Return the value of a setting from the first layer that has it, and that layer's name."""
    for source, values in layers:
        if setting.name not in values:
            continue
        text = str(values[setting.name]).strip(" ")
        named = setting.name if source not in ("environment", ".env") else setting.variable
        if not text and setting.secret:
            continue
        if not text:
            raise ConfigError(f"{named} ({source}) is set but empty; give it a value or unset it")
        try:
            return setting.parse(text), source
        except ValueError as exc:
            raise ConfigError(f'{named} ({source}) {exc}, not "{validate.shown(text)}"') from None
    return setting.default, "default"


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None  # it was removed under us


def registers(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder with the user's `config.toml` and approvals; no `.env` can name another
    one.
    """
    home, _ = _first(
        SETTINGS[0], [("environment", _by_name(os.environ if environment is None else environment))]
    )
    return home or _platform_folder("config")


def _dotenv(folder: Path | None, registers: Path) -> tuple[dict[str, str], list[str], str]:
    """Return the settings that the `.env` of a folder may choose, the names of those that it may
    not, and why.
    """
    file = folder and folder / ".env"
    if not (file and file.exists()):
        return {}, [], ""
    from memories.core import trust

    dotenv = trust.read(file, registers)
    values = _by_name(dotenv.values)
    if dotenv.approved:
        return values, [], ""
    why = "has changed since you trusted it" if dotenv.changed else "may not choose them for you"
    allowed = {
        setting.name: values[setting.name]
        for setting in SETTINGS
        if setting.harmless and _fits(setting, values)
    }
    if dotenv.doubt:
        allowed, why = {}, dotenv.doubt
    return allowed, [name for name in values if name not in allowed], f"{file} {why}"


def _describe_ignored(ignored: Iterable[str], why: str, embedder: str) -> str:
    """Return the sentence on the settings of a `.env` that were ignored, if one of them would have
    had an effect.
    """
    # Most projects have a key in that file, for programs of their own; a local embedder needs none.
    is_local = embedder in ("minilm", "e5", "none", "fake")
    names = [
        setting.variable
        for setting in SETTINGS
        if setting.name in ignored and not (is_local and setting.secret)
    ]
    return f"ignored {', '.join(names)}: {why}; to allow it, run: memory trust" if names else ""


def _fits(setting: Setting, values: Mapping[str, str]) -> bool:
    """Return whether a value is given that the setting accepts: other programs may mean something
    else by its name.
    """
    try:
        setting.parse(values[setting.name].strip(" "))
    except (KeyError, ValueError):
        return False
    return True


def _toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    import tomllib

    from memories.core.trust import others_may_write

    if doubt := others_may_write(file):
        raise ConfigError(f"{file} {doubt}")
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file} is not UTF-8 (byte {exc.start}); save it as UTF-8") from None
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    names = {setting.name for setting in SETTINGS}
    rule_tables = values.pop("redact") if isinstance(values.get("redact"), list) else []
    if "redaction" in values:  # `[[redact]]` leaves no room for a value of that name
        values["redact"] = values.pop("redaction")
    for name in values:
        if name not in names:
            lines = enumerate(text.splitlines(), 1)
            line = next(
                (number for number, written in lines if written.strip().startswith(name)), 1
            )
            raise ConfigError(
                f'{file}:{line}: there is no setting "{name}"; `memory config` lists them'
            )
    settings = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in values.items()
    }
    return settings | ({_RULES: _own_rules(file, rule_tables)} if rule_tables else {})


_RULES = "[[redact]]"


def _own_rules(file: Path, tables: list[Any]) -> "tuple[Rule, ...]":
    from memories.guard.rules import parse_user_rule

    try:
        return tuple(parse_user_rule(number, table) for number, table in enumerate(tables, 1))
    except InvalidInput as exc:
        raise ConfigError(f"{file}: {exc}") from None


_WINDOWS = {"cache": "Cache"}
_XDG = {
    "data": ("XDG_DATA_HOME", ".local/share"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}


def cache_folder() -> Path:
    """Return the folder for files that can be lost without harm."""
    return _platform_folder("cache")


def _platform_folder(kind: str) -> Path:
    """Return the platform's folder for an application's data, configuration or cache, as
    platformdirs names it.

    Computed here because importing platformdirs would cost every command 15 ms.
    """
    user = Path.home()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (
            (Path(local) if local else user / "AppData" / "Local")
            / "memories"
            / "memories"
            / _WINDOWS.get(kind, "")
        )
    if sys.platform == "darwin":
        return (
            user / "Library" / ("Caches" if kind == "cache" else "Application Support") / "memories"
        )
    variable, fallback = _XDG[kind]
    base = os.environ.get(variable, "").strip()
    return (Path(base) if base else user / fallback) / "memories"


def is_own_name(namespace: str, config: Config) -> bool:
    """Return whether the folder of a namespace would be in the place of a file of the program or of
    its store.
    """
    file = local_path(config.store)
    name = None if file is None or file.parent != config.home else file.name.casefold()
    if name is not None and (
        namespace == name or namespace.startswith(tuple(f"{name}{end}" for end in _BESIDE_STORE))
    ):
        return True
    return validate.is_own_name(namespace)


_BESIDE_STORE = (
    "-wal",
    "-shm",
    "-journal",
    "-requests",
    ".",
)  # how names begin that files beside a store have
