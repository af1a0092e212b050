#!/usr/bin/env bash
# Builds kube-scheduler of another Kubernetes version and puts it beside the other programs of a control plane:
#   scheduler.sh v1.33.5 <folder with stowage-controlplane> <new folder>
# The new folder is for STOWAGE_CONTROLPLANE. Needs Go and the network.
set -euo pipefail

version="$1" others="$(realpath "$2")/stowage-controlplane" folder="$(realpath -m "$3")"
[[ "$version" =~ ^v1\.([0-9]+)\.[0-9]+$ ]] || { echo "'$version' is not a Kubernetes version like v1.33.5" >&2; exit 1; }
minor="${BASH_REMATCH[1]}"
[[ -x "$others" ]] || { echo "$others is not there: make controlplane builds it" >&2; exit 1; }

source="$folder/source"
mkdir -p "$source"
cd "$source"
cat > main.go <<'GO'
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand()))
}
GO
# k8s.io/kubernetes finds these modules in its own staging folder; they are published as v0 of the same minor and patch.
kubernetes="$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')"
published="v0.${version#v1.}"
{
  printf 'module scheduler\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/component-base %s\n\tk8s.io/kubernetes %s\n)\n\nreplace (\n' \
    "$published" "$version"
  sed -n 's/^\t\(k8s.io\/[a-z-]*\) => .*/\t\1 => \1 '"$published"'/p' "$kubernetes"
  printf ')\n'
} > go.mod
rm -f go.sum
# Tests of tests are not needed, and not published in whole.
go mod tidy -e

flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
done
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$folder/kube-scheduler" .
for program in etcd kube-apiserver kube-controller-manager kubectl loopback; do
  ln -sf "$others" "$folder/$program"
done
"$folder/kube-scheduler" --version
