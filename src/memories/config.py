"""Loads the settings. The sources are, in order of precedence: options, the environment, `.env`,
`config.toml`, and the defaults.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import warn

from memories.core.disk import home_in_doubt, make_folder, others_may_write, replacing
from memories.core.urls import local_path, slashes_hint
from memories.errors import ConfigError, InvalidInput
from memories.guard import validate
from memories.settings import LOCAL_EMBEDDERS, SETTINGS, Config, HalfLife, Setting
from memories.settings import namespace as parse_namespace

if TYPE_CHECKING:
    from memories.guard.rules import Rule

Layer = tuple[str, Mapping[str, Any]]  # a source of settings, and its values, keyed by name
_HOME = SETTINGS[0]
_REDACT_RULES = "[[redact]]"
# Suffixes that SQLite and this program append to the name of a store for the files next to it.
_STORE_FILE_ENDS = ("-wal", "-shm", "-journal", "-requests", ".")
_DAY_SECONDS = 86_400
_XDG = {
    "data": ("XDG_DATA_HOME", ".local/share"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}


def load_config(
    flags: Mapping[str, str | None] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    tell: Callable[[str], None] = warn,
) -> Config:
    """Load the settings.

    Args:
        flags: The values of options, as text, keyed by the name of the setting. None means that
            the option wasn't given.
        environment: The environment variables; by default, this process's.
        folder: The folder of `.env`; by default, the working directory. Parent folders are not
            searched. Settings in `.env` that could do harm require `memory trust`.
        tell: Called with each warning, such as a sentence about ignored settings.

    Raises:
        ConfigError: A setting is invalid; the message contains its name and source.
    """
    if max(abs(time.timezone), abs(time.altzone)) >= _DAY_SECONDS:
        raise ConfigError(
            f'the time zone "{validate.shown(os.environ.get("TZ", ""))}" in TZ is a day or more '
            "from UTC; correct or unset TZ"
        )
    given_flags = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = _by_name(os.environ if environment is None else environment)
    layers: list[Layer] = [("flag", given_flags), ("environment", variables)]
    home, _ = _find_value(_HOME, layers)
    dotenv = _read_dotenv(folder or working_folder(), home or _platform_folder("config"))
    layers.append((".env", dotenv.allowed))
    home, home_source = _find_value(_HOME, layers)
    file = (home or _platform_folder("config")) / "config.toml"
    toml = _read_toml(file)
    redact_rules = toml.pop(_REDACT_RULES, ())
    layers.append((str(file), toml))

    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        settings[setting.name], sources[setting.name] = _find_value(setting, layers)
    if settings["decay_reinforceable_hours"] is not None:
        settings["decay_half_life_hours"] = HalfLife(
            settings["decay_half_life_hours"], settings["decay_reinforceable_hours"]
        )
    settings["home"] = home or settings["home"] or _platform_folder("data")
    if home:
        sources["home"] = home_source
    doubt = home_in_doubt(settings["home"])
    if doubt:
        raise ConfigError(doubt)
    if settings["store"] is None:
        settings["store"], sources["store"] = _default_store(settings, sources)

    for note in (slashes_hint(settings["store"]), _describe_ignored(dotenv, settings["embedder"])):
        if note:
            tell(note)
    identity = _find_identity(settings["namespace"], sources["namespace"], layers)
    return Config(**settings, sources=sources, identity=identity, redact_rules=redact_rules)


def _by_name(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        setting.name: variables[setting.variable]
        for setting in SETTINGS
        if setting.variable in variables
    }


def _find_value(setting: Setting, layers: Sequence[Layer]) -> tuple[Any, str]:
    """Return a setting's value from the first source that has one, and the name of that source."""
    for source, layer in layers:
        if setting.name not in layer:
            continue
        text = str(layer[setting.name]).strip(" ")
        if not text and setting.secret:
            continue
        name = f"{setting.name} ({source})"
        if source == "flag":
            name = setting.name
        elif source in ("environment", ".env"):
            name = f"{setting.variable} ({source})"
        if not text:
            raise ConfigError(f"{name} is set but empty; give it a value or unset it")
        try:
            return setting.parse(text), source
        except InvalidInput as exc:  # its message is a sentence that contains the value
            place = "" if source == "flag" else f"{name}: "
            raise ConfigError(f"{place}{exc}") from None
        except ValueError as exc:
            if setting.is_common and source == "environment":
                continue
            raise ConfigError(f'{name} {exc}, not "{validate.shown(text)}"') from None
    return setting.default, "default"


def _default_store(settings: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[str, str]:
    """Return the store that other settings imply, and its source.

    It is a Chroma server if the server's host or port is set, else a file.
    """
    for name in ("chromadb_host", "chromadb_port"):
        if sources[name] != "default":
            host = settings["chromadb_host"]
            if ":" in host and not host.startswith("["):
                host = f"[{host}]"
            return f"chroma://{host}:{settings['chromadb_port']}", sources[name]
    return f"sqlite:///{settings['home'] / settings['collection_name']}.db", "default"


def _find_identity(namespace: str, source: str, layers: Sequence[Layer]) -> str | None:
    """Return the namespace that is set by the environment or a file, even if a flag overrides it.

    Return None if it isn't set there, or if a flag overrides an invalid value.
    """
    if source == "default":
        return None
    if source != "flag":
        return namespace
    for _, layer in layers[1:]:
        if "namespace" in layer:
            try:
                return parse_namespace(str(layer["namespace"]))
            except ValueError:
                return None
    return None


def variables_of(variables: Mapping[str, str]) -> list[str]:
    """Return the names of those variables that are settings."""
    return [setting.variable for setting in SETTINGS if setting.variable in variables]


# --- .env ---

_NEVER = "a .env can't set it; put it in config.toml or the environment"


class _DotEnv(NamedTuple):
    """The settings in a `.env` file.

    Attributes:
        allowed: The settings that take effect, keyed by name.
        ignored: The names of the settings that are ignored.
        reason: Why these settings are ignored.
    """

    allowed: Mapping[str, str] = {}
    ignored: Sequence[str] = ()
    reason: str = ""


def _read_dotenv(folder: Path | None, registers: Path) -> _DotEnv:
    file = folder and folder / ".env"
    if not (file and file.exists()):
        return _DotEnv()
    from memories.core import trust

    dotenv = trust.read(file, registers)
    settings = _by_name(dotenv.values)
    if dotenv.approved:
        refused = [one.name for one in SETTINGS if one.name in settings and not one.trustable]
        allowed = {name: value for name, value in settings.items() if name not in refused}
        return _DotEnv(allowed, refused)
    if dotenv.doubt:
        return _DotEnv(ignored=list(settings), reason=f"{file} {dotenv.doubt}")
    allowed = {
        setting.name: settings[setting.name]
        for setting in SETTINGS
        if setting.harmless and _is_acceptable(setting, settings)
    }
    why = "has changed since you trusted it" if dotenv.changed else "may not choose them for you"
    ignored = [name for name in settings if name not in allowed]
    return _DotEnv(allowed, ignored, f"{file} {why}")


def _is_acceptable(setting: Setting, settings: Mapping[str, str]) -> bool:
    """Return whether a setting has a valid value. Other programs may use its variable with values
    that are invalid here.
    """
    if setting.name not in settings:
        return False
    try:
        setting.parse(settings[setting.name].strip(" "))
    except ValueError:
        return False
    return True


def _describe_ignored(dotenv: _DotEnv, embedder: str) -> str:
    """Return a sentence about the ignored settings in a `.env`, or an empty string."""
    # Many projects keep API keys for their own programs in `.env`. With a local embedder, Memories
    # needs no key, so an ignored key isn't worth a warning.
    needs_no_key = embedder in LOCAL_EMBEDDERS
    names: list[str] = []
    remedy = ""
    for setting in SETTINGS:
        if setting.name not in dotenv.ignored or (needs_no_key and setting.secret):
            continue
        if setting.trustable:
            names.append(setting.variable)
            remedy = f": {dotenv.reason}; to allow it, run: memory trust"
        else:
            names.append(f"{setting.variable} ({_NEVER})")
    return f"ignored {', '.join(names)}{remedy}" if names else ""


# --- config.toml ---


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the settings in `config.toml`, keyed by name, and the rules for `redact`."""
    if not file.is_file():
        return {}
    import tomllib

    doubt = others_may_write(file)
    if doubt:
        raise ConfigError(f"{file} {doubt}")
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file} is not UTF-8 (byte {exc.start}); save it as UTF-8") from None
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    rule_tables = values.pop("redact") if isinstance(values.get("redact"), list) else []
    if "redaction" in values:  # in this file, `redact` means the tables of rules
        values["redact"] = values.pop("redaction")
    _refuse_unknown(file, text, values)
    settings: dict[str, Any] = {}
    for name, value in values.items():
        settings[name] = str(value).lower() if isinstance(value, bool) else value
    if rule_tables:
        settings[_REDACT_RULES] = _parse_redact_rules(file, rule_tables)
    return settings


def save_setting(name: str, value: str) -> Path:
    """Write a setting to the user's `config.toml`. All other lines are kept byte for byte.

    Returns:
        The file.

    Raises:
        ConfigError: The file can't be read or written, or its layout can't be edited.
    """
    import json
    import re
    import tomllib

    file = registers() / "config.toml"
    _read_toml(file)  # refuses a file that isn't the user's own
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        line = f"{name} = {json.dumps(value)}"
        head, bracket, tables = before.partition("\n[")
        after, count = re.subn(rf"(?m)^[ \t]*{name}[ \t]*=.*$", lambda _: line, head, count=1)
        if not count:
            after = f"{line}\n{head}"
        after += bracket + tables
        if tomllib.loads(after) != {**tomllib.loads(before), name: value}:
            raise ConfigError(f"{file} has an unusual layout; add this line to it: {line}")
        make_folder(file.parent)
        with replacing(file) as stream:
            stream.write(after.encode())
    except OSError as exc:
        raise ConfigError(f"cannot write {file}: {exc.strerror or exc}") from exc
    return file


def _refuse_unknown(file: Path, text: str, values: Iterable[str]) -> None:
    names = {setting.name for setting in SETTINGS}
    for name in values:
        if name in names:
            continue
        number = 1
        for at, line in enumerate(text.splitlines(), 1):
            if line.strip().startswith(name):
                number = at
                break
        raise ConfigError(
            f'{file}:{number}: there is no setting "{name}"; `memory config` lists them'
        )


def _parse_redact_rules(file: Path, tables: Sequence[Any]) -> "tuple[Rule, ...]":
    from memories.guard.rules import parse_user_rule

    try:
        return tuple(parse_user_rule(number, table) for number, table in enumerate(tables, 1))
    except InvalidInput as exc:
        raise ConfigError(f"{file}: {exc}") from None


# --- folders and names ---


def registers(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder with the user's `config.toml` and approvals; no `.env` can change it."""
    variables = _by_name(os.environ if environment is None else environment)
    home, _ = _find_value(_HOME, [("environment", variables)])
    return home or _platform_folder("config")


def cache_folder() -> Path:
    """Return the folder for files that can be deleted without harm."""
    return _platform_folder("cache")


def working_folder() -> Path | None:
    """Return the working folder; None if another process has removed it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _platform_folder(kind: str) -> Path:
    """Return the platform's folder for data, configuration or cache.

    It is the folder that platformdirs would return. Importing platformdirs would make every command
    15 ms slower.
    """
    user = Path.home()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else user / "AppData" / "Local"
        folder = base / "memories" / "memories"
        return folder / "Cache" if kind == "cache" else folder
    if sys.platform == "darwin":
        name = "Caches" if kind == "cache" else "Application Support"
        return user / "Library" / name / "memories"
    variable, fallback = _XDG[kind]
    named = os.environ.get(variable, "").strip()
    folder = Path(named) if named else user / fallback
    return folder / "memories"


def is_own_name(namespace: str, config: Config) -> bool:
    """Return whether a namespace's name is reserved because one of the program's or store's own
    files has that name.
    """
    file = local_path(config.store)
    if file is not None and file.parent == config.home:
        name = file.name.casefold()
        beside = tuple(f"{name}{end}" for end in _STORE_FILE_ENDS)
        if namespace == name or namespace.startswith(beside):
            return True
    return validate.is_own_name(namespace)
