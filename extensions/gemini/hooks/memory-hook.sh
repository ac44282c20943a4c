#!/bin/sh
# Runs a hook of the command `memoriae`: EVENT [HOST]. If the hook fails, the agent continues without it.
event=$1
host=${2:-claude-code}
[ -z "${2:-}" ] && [ -n "${PLUGIN_ROOT:-}" ] && host=codex # Codex also sets Claude Code's variables

PATH=$PATH:$HOME/.local/bin # uv and pipx install there; agents started from a desktop don't have the shell's PATH
program=$(command -v memoriae 2>/dev/null)

problem=
if [ -z "$program" ]; then
  problem="needs the command memoriae: install it (uv tool install memoriae, or pipx install memoriae)"
  command -v memory >/dev/null 2>&1 &&
    problem="$problem; the memory on your PATH is another program or an older version of this one"
elif [ "$event" = session-start ] && { grep -q memories "$program" 2>/dev/null; [ $? = 1 ]; }; then
  problem="found a different program: $program is not this plugin's memoriae; remove it, or put ours before it in PATH"
fi
if [ -n "$problem" ]; then
  cat >/dev/null
  mark=${CLAUDE_PLUGIN_DATA:+$CLAUDE_PLUGIN_DATA/problem-was-reported}
  if [ "$event" = session-start ] && { [ -z "$mark" ] || [ ! -e "$mark" ]; }; then
    echo "{\"systemMessage\": \"The plugin memories $problem. See the plugin's README.\"}"
    [ -n "$mark" ] && mkdir -p "$CLAUDE_PLUGIN_DATA" 2>/dev/null && : >"$mark" 2>/dev/null
  fi
  exit 0
fi

namespace=${CLAUDE_PLUGIN_OPTION_NAMESPACE:-}
set -- "$event" --host "$host"
case ${CLAUDE_PLUGIN_OPTION_CAPTURE:-${MEMORY_CAPTURE:-}} in
  1 | true | yes | on) set -- "$@" --capture ;;
  *)
    case $event in
      stop | pre-compact) # nothing to recall
        cat >/dev/null
        exit 0
        ;;
    esac
    ;;
esac
[ -n "$namespace" ] && set -- "$@" -n "$namespace"
"$program" hook "$@" 2>/dev/null
exit 0
