#!/bin/sh
# Draws docs/search.svg from the README's commands under "Try it", run in a temporary home.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
tools=$(cd "$(dirname "$0")" && pwd)
PATH="$(dirname "$python"):$PATH"
MEMORY_HOME=$(mktemp -d)
export PATH MEMORY_HOME
trap 'rm -rf "$MEMORY_HOME"' EXIT
"$python" "$tools/picture.py" "$tools/../docs/search.svg" \
  'memory create "Deploys happen on Tuesdays at 09:30" --project shop' \
  'memory create "Deploys happen on Thursdays at 09:30" --project shop' \
  'memory search "when do we release?" --project shop'
