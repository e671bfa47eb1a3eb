#!/usr/bin/env bash
# tests/soak.sh SECONDS [flags of `gguflow serve`]: a server under load for so long, by CLIENTS clients
# (64). Every text has to be the one it is alone, and memory, threads, descriptors and pages have to stay.
set -euo pipefail
seconds=${1:?"usage: tests/soak.sh SECONDS [flags of gguflow serve]"}
shift
python=${PYTHON:-python}
log=$(mktemp)
"$python" -m gguflow serve --port 0 -c 512 --parallel 16 --no-access-log "$@" 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT
until url=$(sed -n 's/^ready.* \(http[^ ]*\)\/$/\1/p' "$log") && [ -n "$url" ]; do
	kill -0 $server 2>/dev/null || { cat "$log" >&2; exit 1; }
	sleep 0.2
done
"$python" -m gguflow bench --serve "$url" --soak "$seconds" --clients "${CLIENTS:-64}" -npp 48 -ntg 16
kill -TERM $server
wait $server
