#!/bin/sh
# mutants.sh [--diff REVISION] [PACKAGE…] changes single operators of the pure packages, in a clone of HEAD, runs the tests of the changed
# package, and lists the mutants that LIVED, that no test covers and that TIMED OUT. With --diff it mutates the lines changed since REVISION.
set -u
gremlins=github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
since=
case "${1-}" in --diff) since=${2:?a revision} && shift 2 ;; esac
root=$(git rev-parse --show-toplevel) && tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
GOBIN=$tmp go install "$gremlins" || { echo "$gremlins cannot be fetched or built: set GOPROXY to a proxy that can be reached" && exit 2; }
[ -z "$since" ] || since=$(git rev-parse --verify "$since^{commit}") || exit 2
git clone -q --shared "$root" "$tmp/clone" && cd "$tmp/clone" || exit 2
git config diff.relative true                # gremlins names files from the package's folder
export GOFLAGS="${GOFLAGS-} -short -vet=off" # for each go test that gremlins starts

[ $# -gt 0 ] || set -- $(git ls-files 'domain/*.go' 'events/*.go' 'commands/*.go' | xargs -n 1 dirname | sort -u)
for package; do
  package=${package#./}
  files=$(git ls-files "$package/*.go" | grep -v "^$package/.*/\|_test.go$")
  # Without a changed file gremlins would mutate all of them.
  [ -z "$since" ] || ! git diff --quiet --merge-base "$since" -- $files || continue
  echo "# $package"
  # Patience: the time of a mutant holds its compilation, the measured time of the unchanged tests may not.
  (cd "$package" && "$tmp/gremlins" unleash --output-statuses lct --timeout-coefficient 20 --exclude-files '/' ${since:+--diff "$since"}) || exit 1
done
