#!/bin/sh
# Runs a hook of the command `memoriae`: EVENT [HOST]. If the hook fails, the agent continues without it.
event=$1
host=${2:-claude-code}
[ -z "${2:-}" ] && [ -n "${PLUGIN_ROOT:-}" ] && host=codex # Codex also sets Claude Code's variables
first=session-start # the event that reports a problem
[ "$host" = gemini ] && first=user-prompt

# Hosts start the plugin's MCP server only if this is on their PATH; the session block then names its tools.
command -v memoriae >/dev/null 2>&1 && export MEMORY_PLUGIN_TOOLS=1
PATH=$PATH:$HOME/.local/bin # uv and pipx install there; agents started from a desktop don't have the shell's PATH
program=$(command -v memoriae 2>/dev/null)

problem=
if [ -z "$program" ]; then
  problem="needs the command memoriae: install it (uv tool install memoriae, or pipx install memoriae)"
  command -v memory >/dev/null 2>&1 &&
    problem="$problem; the memory on your PATH is another program or an older version of this one"
elif [ "$event" = "$first" ] && { grep -q memories "$program" 2>/dev/null; [ $? = 1 ]; }; then
  problem="found a different program: $program is not this plugin's memoriae; remove it, or put ours before it in PATH"
fi
if [ -n "$problem" ]; then
  cat >/dev/null
  data=${CLAUDE_PLUGIN_DATA:-}
  [ "$host" = gemini ] && data=${0%/*} # Gemini CLI has no folder for an extension's data
  mark=${data:+$data/problem-was-reported}
  if [ "$event" = "$first" ] && { [ -z "$mark" ] || [ ! -e "$mark" ]; }; then
    echo "{\"systemMessage\": \"The plugin memories $problem. See the plugin's README.\"}"
    [ -n "$mark" ] && mkdir -p "$data" 2>/dev/null && : >"$mark" 2>/dev/null
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
