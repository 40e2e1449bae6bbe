#!/bin/sh
# Does docker/compose.yaml keep its promise? Starts a job with 3 trainers whose key is a secret, has a node with another
# key refused, and asks for metrics with and without the token. Scales to 4 trainers while it trains. Kills a container
# of each role, and starts each again: it must take part again. Waits for the report, and checks the ledger. Removes all
# that it has made.
#
#   docker/smoke.sh                      # builds the images; BASE and TORCH_INDEX are passed on
#   IMAGE=shadowsync docker/smoke.sh     # takes that one
#
# EXAMPLES (1000000) times EPOCHS (6) is the size of the job, which must outlast the kills; SECONDS_LIMIT (900) is the
# longest that it may run. On a machine that is so busy that a container takes half a minute to start, set
# NODE_TIMEOUT_SECONDS (15) to more: nodes wait twice as long for a coordinator that is gone.
# The last line says what happened. Exit code 0: as it should be; 1: not; 2: it could not be tried.
set -eu
cd "$(dirname "$0")/.."

EXAMPLES=${EXAMPLES:-1000000}
EPOCHS=${EPOCHS:-6}
NODE_TIMEOUT_SECONDS=${NODE_TIMEOUT_SECONDS:-15}
TOTAL=$((EXAMPLES * EPOCHS))
SECONDS_LIMIT=${SECONDS_LIMIT:-900}
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
compose() { $COMPOSE -p "$PROJECT" -f docker/compose.yaml -f docker/compose.secrets.yaml "$@"; }

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
FOLDER=$(mktemp -d)
export IMAGE EXAMPLES TRAINERS=3 JOB="$FOLDER/job.toml" KEY="$FOLDER/job.key"
# What the caller has set for jobs of their own is none of this one's.
unset DATA READERS EMBEDDINGS SYNCS NODE_MEMORY NODE_CPUS KEY_FILE

clean() {
  docker rm -f "$PROJECT-keys" "$PROJECT-check" "$PROJECT-stranger" >/dev/null 2>&1 || true
  SAID=$(compose down --volumes --timeout 5 2>&1) ||
    say "could not remove all of project $PROJECT: $(printf '%s' "$SAID" | tail -n 1)"
  # shellcheck disable=SC2086 - these are two names
  [ -z "${BUILT:-}" ] || docker image rm -f $BUILT >/dev/null 2>&1 || say "could not remove image $BUILT"
  rm -rf "$FOLDER" 2>/dev/null || say "could not remove $FOLDER"
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
    sleep 0.5
  done
}
in_time() { [ "$(date +%s)" -lt "$DEADLINE" ]; }
# Number of lines with $1 in the coordinator's log.
logged() {
  docker exec "$COORDINATOR" cat /runs/latest/logs/coordinator.jsonl 2>/dev/null | grep -c "$1" || true
}
# Kill a container of role $1, start it again, and wait until the coordinator's log has another line with $2.
bring_back() {
  CONTAINER=$(compose ps -q "$1" | sed -n 1p)
  BEFORE=$(logged "$2")
  TRAINED=$(figure trained)
  BEGAN=$(date +%s)
  docker kill "$CONTAINER" >/dev/null || fail "the container of a $1 could not be killed"
  docker start "$CONTAINER" >/dev/null || fail "the container of a $1 could not be started again"
  while NOW=$(logged "$2") && [ "${NOW:-0}" -le "$BEFORE" ]; do
    in_time || fail "the $1 was not back in time"
    case $(state "$COORDINATOR") in
      exited* | stopped* | gone*) fail "the coordinator ended before the $1 was back; a job that is too short?" ;;
    esac
    sleep 0.5
  done
  say "killed the container of a $1 after $TRAINED examples; started again, it was back in the job after" \
    "$(($(date +%s) - BEGAN)) s"
}

# Bound into the containers, whose user must be able to read it.
chmod 755 "$FOLDER"
sed "s/^\\[data\\]/[data]\\nepochs = $EPOCHS/; s/^start_timeout/node_timeout_seconds = $NODE_TIMEOUT_SECONDS\\n&/" docker/job.toml >"$JOB"
docker run -d --name "$PROJECT-keys" --user 0 -v "$FOLDER:/keys" --entrypoint sh "$CONTROL_IMAGE" \
  -c 'shadowsync key new /keys/job.key && shadowsync key new /keys/other.key && chown shadowsync /keys/*.key' \
  >/dev/null || fail "keys could not be made"
[ "$(docker wait "$PROJECT-keys")" = 0 ] || fail "keys could not be made: $(docker logs "$PROJECT-keys" 2>&1)"

say "starts 1 coordinator, 1 reader, 3 trainers, 2 embedding nodes, 1 sync node; $EXAMPLES examples, $EPOCHS times"
compose up -d --no-build >/dev/null 2>&1 || fail "the containers could not be started"
COORDINATOR=$(compose ps -q coordinator)
[ -n "$COORDINATOR" ] || fail "there is no coordinator"
[ "$(compose ps -q trainer | wc -l)" -eq 3 ] || fail "there are not 3 trainers"

reach trained $((TOTAL / 50)) "the job had not trained a fiftieth"
say "scales to 4 trainers after $REACHED examples"
compose up -d --no-build --no-recreate --scale trainer=4 >/dev/null 2>&1 || fail "the job could not be scaled"
reach trainer 4 "the fourth trainer had not joined"
say "4 trainers after $(figure trained) examples"

SAID=$(docker exec "$COORDINATOR" sh -c 'exec python -c "$1" "$(shadowsync key token)" coordinator reader trainer \
  embedding sync' check "$(cat docker/check_metrics.py)" 2>&1) || fail "$SAID"
say "$SAID"
docker run -d --name "$PROJECT-stranger" --network "${PROJECT}_nodes" -v "$JOB:/job/job.toml:ro" \
  -v "$FOLDER/other.key:/other.key:ro" -e SHADOWSYNC_KEY_FILE=/other.key "$CONTROL_IMAGE" \
  reader /job/job.toml --join tcp://coordinator:5555 --bind 0.0.0.0 --advertise auto --set trainer.count=3 \
  --set embedding.nodes=2 >/dev/null || fail "a node with another key could not be started"
CODE=$(docker wait "$PROJECT-stranger")
SAID=$(docker logs "$PROJECT-stranger" 2>&1 | tail -n 1)
case "$CODE $SAID" in "4 "*"different keys"*) ;; *) fail "a node with another key ended with $CODE: $SAID" ;; esac
say "a node with another key was refused"

for ROLE in trainer reader sync embedding; do
  bring_back "$ROLE" "$ROLE-[0-9]*: joined the running job"
done
bring_back coordinator "another one took over"

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
  -c "$(cat docker/check_run.py)" /runs/latest "$TOTAL" trainer,reader,sync,embedding 5 >/dev/null ||
  fail "the check could not be started"
VERDICT=$(docker wait "$PROJECT-check")
docker logs "$PROJECT-check"
[ "$VERDICT" = 0 ] || fail "the run's ledger is not in order"

while :; do
  LEFT=$(compose ps -q | while read -r each; do state "$each"; done | grep -c running || true)
  [ "$LEFT" -gt 0 ] || break
  in_time || fail "$LEFT containers are still running"
  sleep 0.5
done
say "OK: a trainer joined, a container of each role was killed and came back, every example was trained, the ledger" \
  "adds up"
