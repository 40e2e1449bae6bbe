#!/bin/sh
# Do the pods of `shadowsync render kubernetes` run a job, and go on when one of them is killed? Plays them with podman,
# without a cluster, and runs their probes: kills a trainer, an embedding node and then the coordinator, and starts
# the pod of the same index again 30 s later, as its Job would. Removes all that it has made.
#
#   IMAGE=shadowsync CONTROL_IMAGE=shadowsync-control SHADOWSYNC=.venv/bin/shadowsync docker/smoke_kubernetes.sh
#
# The last line says what happened. Exit code 0: as it should be; 1: not; 2: it could not be tried.
set -eu
cd "$(dirname "$0")/.."

IMAGE=${IMAGE:-shadowsync}
CONTROL_IMAGE=${CONTROL_IMAGE:-$IMAGE}
SHADOWSYNC=${SHADOWSYNC:-.venv/bin/shadowsync}
PYTHON=$(dirname "$SHADOWSYNC")/python
DEADLINE=$(($(date +%s) + ${SECONDS_LIMIT:-900}))
NAME=smoke$$
FOLDER=$(mktemp -d)

say() { echo "smoke: $*"; }
cannot() {
  say "cannot be tried: $*"
  exit 2
}
fail() {
  podman logs "$NAME-coordinator-0-0-coordinator" 2>&1 | tail -n 40 || true
  say "FAILED: $*"
  exit 1
}
clean() {
  for pod in $(podman pod ps -q --filter "name=$NAME"); do podman pod rm -f "$pod" >/dev/null 2>&1 || true; done
  podman volume rm -f "$NAME-data" "$NAME-runs" "$NAME-job" key >/dev/null 2>&1 || true
  podman network rm "$NAME" >/dev/null 2>&1 || true
  rm -rf "$FOLDER"
}
podman info >/dev/null 2>&1 || cannot "podman does not answer"
trap clean EXIT
trap 'exit 130' INT TERM

mounted() { podman volume inspect "$1" --format '{{.Mountpoint}}'; }
for volume in key "$NAME-data" "$NAME-runs"; do
  podman volume create "$volume" >/dev/null || cannot "there is a volume $volume"
done
"$SHADOWSYNC" key new "$FOLDER/job.key" >/dev/null
cp "$FOLDER/job.key" "$(mounted key)/"
"$SHADOWSYNC" generate "$(mounted "$NAME-data")" --examples 100000 --eval-examples 10000 >/dev/null
chown -R 10001:10001 "$(mounted key)" "$(mounted "$NAME-data")" "$(mounted "$NAME-runs")"
sed 's#\.\./demo-data/#/data/#' examples/demo.toml >"$FOLDER/job.toml"
# The job is to last until all three have been killed.
"$SHADOWSYNC" render kubernetes "$FOLDER/job.toml" --name "$NAME" --image "localhost/$IMAGE" \
  --control-image "localhost/$CONTROL_IMAGE" --runs-claim "$NAME-runs" --data-claim "$NAME-data" \
  --set data.epochs=30 >"$FOLDER/job.yaml"
PODS=$("$PYTHON" docker/pods_of_jobset.py "$FOLDER/job.yaml" "$FOLDER")
podman network create "$NAME" >/dev/null

COORDINATOR=$NAME-coordinator-0-0
play() {
  case $1 in "$COORDINATOR") NETWORK=$NAME:alias=$COORDINATOR.$NAME ;; *) NETWORK=$NAME ;; esac
  podman kube play --network "$NETWORK" "$FOLDER/$1.yaml" >/dev/null 2>&1 || fail "$1 could not be started"
}
kill_and_play() {
  say "kills $1 after $(trained) examples, and starts it again 30 s later"
  podman kill -s KILL "$1-$2" >/dev/null || fail "$1 could not be killed"
  podman pod rm -f "$1" >/dev/null 2>&1
  sleep 30
  play "$1"
  passes_probes "$1" "$2"
}
passes_probes() {
  until podman exec "$1-$2" sh -c "$(cat "$FOLDER/$1.probes")" 2>/dev/null; do
    [ "$(date +%s)" -lt "$DEADLINE" ] || fail "$1 does not pass its probes"
    sleep 0.5
  done
  # A folder that its user may write to.
  ! podman exec "$1-$2" touch /opt/matplotlib/mark 2>/dev/null || fail "the root of $1 can be written to"
}
trained() {
  podman exec "$COORDINATOR-coordinator" shadowsync health --json 2>/dev/null | sed -n 's/.*"trained": \([0-9]*\).*/\1/p'
}
reach() {
  while COUNT=$(trained) && [ "${COUNT:-0}" -lt "$1" ]; do
    [ "$(date +%s)" -lt "$DEADLINE" ] || fail "$1 examples were not trained in time"
    sleep 0.5
  done
}

role_of() { echo "${1#"$NAME"-}" | cut -d- -f1; }

for pod in $PODS; do play "$pod"; done
for pod in $PODS; do passes_probes "$pod" "$(role_of "$pod")"; done
reach 50000
kill_and_play "$NAME-trainer-0-1" trainer
reach 100000
kill_and_play "$NAME-embedding-0-0" embedding
reach 200000
kill_and_play "$COORDINATOR" coordinator
for pod in $PODS; do
  role=$(role_of "$pod")
  CODE=$(timeout $((DEADLINE - $(date +%s))) podman wait "$pod-$role") || fail "$pod has not ended in time"
  [ "$CODE" = 0 ] || fail "$pod ended with exit code $CODE"
done
LOG=$(podman logs "$COORDINATOR-coordinator" 2>&1; cat "$(mounted "$NAME-runs")/latest/report.md")
for text in "The ledger adds up" "another one took over" "finished although a node died"; do
  case $LOG in *"$text"*) ;; *) fail "log and report of the coordinator do not say: $text" ;; esac
done
say "OK: pods of three roles were killed and came back after 30 s, every pod ended with 0, the ledger adds up"
