#!/bin/sh
# Stores a dozen memories in .demo/, searches for them, and shows where they are stored. You can run
# it any number of times: stored memories are not stored twice.
set -eu
memory=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
MEMORY_HOME=$(pwd)/.demo
export MEMORY_HOME MEMORY_FORMAT=text
cd /tmp # so that a .env in this folder has no effect

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

store() { "$memory" create "$@" > /dev/null || [ $? -eq 3 ]; }

say 'memory create "…"   (a dozen times)'
store "The user prefers Python for command line tools" --type preference --global
store "The user wants short answers without emoji" --type preference --global
store "Deploys of the shop happen on Tuesdays at 09:30 from the release branch" --project shop --type fact
store "The shop's database is PostgreSQL 16 and listens on port 5433, not 5432" --project shop --type fact
store "Login tokens are checked in src/auth/session.py, which has no tests yet" --project shop --type fact
store "We chose Redis over RabbitMQ for the job queue because operations already runs it" --project shop --type decision
store "Tests fail on macOS when the temp folder is a symbolic link" --project shop --type observation
store "Team convention: conventional commits, squash on merge" --project shop --decay reinforceable
store "The user seemed frustrated by slow CI during today's review" --type observation --decay contextual
store "Caroline owns the billing service, Melanie the search service" --project shop --type fact
store "お客様の請求書は毎月末に送る" --project shop --type fact
store "Пользователь живёт в часовом поясе Europe/Riga" --type fact --global
store "The editor is Vim" --key user/editor --type preference
store "The editor is Helix" --key user/editor --type preference
"$memory" status

for query in "which language should I write the script in?" "when do we release to production" \
  "port of the database" "who is responsible for invoices" "請求書" "часовой пояс" "which editor"; do
  say "memory search \"$query\" --limit 2"
  "$memory" search "$query" --limit 2
done

say 'memory search "xyzzy plugh"   (nonsense finds nothing)'
"$memory" search "xyzzy plugh"

say 'memory tags'
"$memory" tags

printf '\nEverything is in one file: %s\n' "$MEMORY_HOME/memories.db"
