#!/bin/sh
# Cargo's runner: end-to-end tests (and the demo) run in a network namespace of their own, in which every address of
# 10.244.0.0/16 is local, so that each simulated base has its own address. All other programs run directly.
#
# STOWAGE_NETNS=off runs everything directly; STOWAGE_NETNS=on gives any program a namespace.
set -eu

case "$(basename "$1")" in
e2e_* | demo | demo-*) wanted=${STOWAGE_NETNS:-on} ;;
*) wanted=${STOWAGE_NETNS:-off} ;;
esac
[ "$wanted" = on ] || exec "$@"

if ! command -v unshare >/dev/null; then
  echo "tests/runner.sh: end-to-end tests need 'unshare' (util-linux) for a network namespace" >&2
  exit 1
fi
if [ "$(id -u)" = 0 ] && unshare -n true 2>/dev/null; then
  namespace=-n
elif unshare -rn true 2>/dev/null; then
  namespace=-rn
else
  echo "tests/runner.sh: this user may make no network namespace (neither 'unshare -n' nor 'unshare -rn' works)" >&2
  exit 1
fi

# Without iproute2 the harness sets up the namespace itself.
# shellcheck disable=SC2016
STOWAGE_NETNS=inside exec unshare "$namespace" -- sh -c '
  if command -v ip >/dev/null; then
    ip link set lo up
    ip route add local 10.244.0.0/16 dev lo
  fi
  exec "$@"
' sh "$@"
