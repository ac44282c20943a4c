#!/bin/sh
# Runs one hook of the command `memory`: EVENT [HOST]. Whatever happens, the agent goes on.
event=$1
host=${2:-claude-code}
[ -z "${2:-}" ] && [ -n "${PLUGIN_ROOT:-}" ] && host=codex # Codex sets the variables of Claude Code, too

if ! command -v memory >/dev/null 2>&1; then
  cat >/dev/null
  told=${CLAUDE_PLUGIN_DATA:+$CLAUDE_PLUGIN_DATA/told-that-memory-is-missing}
  if [ "$event" = session-start ] && { [ -z "$told" ] || [ ! -e "$told" ]; }; then
    echo '{"systemMessage": "The plugin memories needs the command memory on your PATH; its README says how to install it."}'
    [ -n "$told" ] && mkdir -p "$CLAUDE_PLUGIN_DATA" 2>/dev/null && : >"$told" 2>/dev/null
  fi
  exit 0
fi

namespace=${CLAUDE_PLUGIN_OPTION_NAMESPACE:-}
set -- "$event" --host "$host"
case ${CLAUDE_PLUGIN_OPTION_CAPTURE:-${MEMORY_CAPTURE:-}} in
  1 | true | yes | on) set -- "$@" --capture ;;
  *)
    case $event in
      stop | pre-compact | session-end) # nothing to recall
        cat >/dev/null
        exit 0
        ;;
    esac
    ;;
esac
[ -n "$namespace" ] && set -- "$@" -n "$namespace"
memory hook "$@" 2>/dev/null
exit 0
