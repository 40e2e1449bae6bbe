#!/bin/sh
# Does docker/compose.yaml keep its promise? Starts a job with 3 trainers, scales it to 4 while it trains, kills the
# container of one, starts that container again, waits for the report, and checks the ledger. Removes all that it has
# made.
#
#   docker/smoke.sh                      # builds the images; BASE and TORCH_INDEX are passed on
#   IMAGE=shadowsync docker/smoke.sh     # takes that one
#
# EXAMPLES (1000000) is the size of the job, SECONDS_LIMIT (600) the longest that it may run.
# The last line says what happened. Exit code 0: as it should be; 1: not; 2: it could not be tried.
set -eu
cd "$(dirname "$0")/.."

EXAMPLES=${EXAMPLES:-1000000}
SECONDS_LIMIT=${SECONDS_LIMIT:-600}
PROJECT=shadowsync-smoke-$$
DEADLINE=$(($(date +%s) + SECONDS_LIMIT))

say() { echo "smoke: $*"; }
cannot() {
  say "cannot be tried: $*"
  exit 2
}
fail() {
  compose logs --no-color 2>&1 | tail -n 60 || true
  say "FAILED: $*"
  exit 1
}

docker info >/dev/null 2>&1 || cannot "no container engine answers (docker info)"
if docker compose version >/dev/null 2>&1; then
  COMPOSE="docker compose"
elif command -v docker-compose >/dev/null; then
  COMPOSE=docker-compose
else
  cannot "neither docker compose nor docker-compose is there"
fi
compose() { $COMPOSE -p "$PROJECT" -f docker/compose.yaml "$@"; }

if [ -z "${IMAGE:-}" ]; then
  IMAGE=$PROJECT
  say "builds the image"
  set -- ${BASE:+--build-arg "BASE=$BASE"} ${TORCH_INDEX+--build-arg "TORCH_INDEX=$TORCH_INDEX"}
  docker build -q -f docker/Dockerfile -t "$IMAGE" "$@" . >/dev/null || cannot "the image cannot be built"
  BUILT=$IMAGE
  CONTROL_IMAGE=$PROJECT-control
  docker build -q -f docker/Dockerfile.control -t "$CONTROL_IMAGE" ${BASE:+--build-arg "BASE=$BASE"} . >/dev/null ||
    cannot "the image of coordinator and readers cannot be built"
  BUILT="$BUILT $CONTROL_IMAGE"
fi
export CONTROL_IMAGE="${CONTROL_IMAGE:-$IMAGE}"
export IMAGE EXAMPLES TRAINERS=3
# What the caller has set for jobs of their own is none of this one's.
unset JOB DATA READERS EMBEDDINGS SYNCS NODE_MEMORY NODE_CPUS

clean() {
  docker rm -f "$PROJECT-check" >/dev/null 2>&1 || true
  SAID=$(compose down --volumes --timeout 5 2>&1) ||
    say "could not remove all of project $PROJECT: $(printf '%s' "$SAID" | tail -n 1)"
  # shellcheck disable=SC2086 - these are two names
  [ -z "${BUILT:-}" ] || docker image rm -f $BUILT >/dev/null 2>&1 || say "could not remove image $BUILT"
}
trap clean EXIT
trap 'exit 130' INT TERM

state() { docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$1" 2>/dev/null || echo "gone 0"; }
# The figure $1 that the coordinator tells of itself; nothing while it does not answer.
figure() {
  docker exec "$COORDINATOR" shadowsync health --json 2>/dev/null | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p"
}
# Wait until figure $1 is at least $2, or fail with $3. The figure is in REACHED then.
reach() {
  while :; do
    in_time || fail "$3 within $SECONDS_LIMIT s"
    case $(state "$COORDINATOR") in
      running* | created* | configured* | initialized*) ;;
      *) fail "the coordinator ended: $3" ;;
    esac
    REACHED=$(figure "$1")
    [ "${REACHED:-0}" -lt "$2" ] || return 0
    sleep 0.2
  done
}
in_time() { [ "$(date +%s)" -lt "$DEADLINE" ]; }

say "starts 1 coordinator, 1 reader, 3 trainers, 2 embedding nodes, 1 sync node; $EXAMPLES examples"
compose up -d --no-build >/dev/null 2>&1 || fail "the containers could not be started"
COORDINATOR=$(compose ps -q coordinator)
[ -n "$COORDINATOR" ] || fail "there is no coordinator"
VICTIM=$(compose ps -q trainer | sed -n 2p)
[ "$(compose ps -q trainer | wc -l)" -eq 3 ] || fail "there are not 3 trainers"

reach trained $((EXAMPLES / 20)) "the job had not trained a twentieth"
say "scales to 4 trainers after $REACHED examples"
compose up -d --no-build --no-recreate --scale trainer=4 >/dev/null 2>&1 || fail "the job could not be scaled"
reach trainer 4 "the fourth trainer had not joined"
TRAINED=$(figure trained)
say "4 trainers after $TRAINED examples; kills the container of one"
docker kill "$VICTIM" >/dev/null || fail "the trainer's container could not be killed"
say "starts that container again"
docker start "$VICTIM" >/dev/null || fail "the trainer's container could not be started again"

while :; do
  in_time || fail "the job had not ended within $SECONDS_LIMIT s"
  case $(state "$COORDINATOR") in
    exited* | stopped*) break ;;
    gone*) fail "the coordinator's container is gone" ;;
  esac
  sleep 0.5
done
CODE=$(state "$COORDINATOR" | cut -d ' ' -f 2)
[ "$CODE" = 5 ] || fail "the coordinator's exit code is $CODE, not 5 (finished although a node died)"
say "the job ended with exit code $CODE"

docker run -d --name "$PROJECT-check" -v "${PROJECT}_runs:/runs:ro" --entrypoint python "$IMAGE" \
  -c "$(cat docker/check_run.py)" /runs/latest "$EXAMPLES" 1 5 >/dev/null || fail "the check could not be started"
VERDICT=$(docker wait "$PROJECT-check")
docker logs "$PROJECT-check"
[ "$VERDICT" = 0 ] || fail "the run's ledger is not in order"

while :; do
  LEFT=$(compose ps -q | while read -r each; do state "$each"; done | grep -c running || true)
  [ "$LEFT" -gt 0 ] || break
  in_time || fail "$LEFT containers are still running"
  sleep 0.5
done
say "OK: a trainer joined, one was killed and came back, every example was trained once, the ledger adds up"
