#!/bin/sh
# planted.sh [NAME…] plants each bug test/planted/P*/NAME.patch, alone, in a clone of HEAD, and requires that its test fails there, with the
# words of its header. Without the bugs the same tests have to pass. A run of all bugs writes docs/reliability/planted.md.
set -u
root=$(git rev-parse --show-toplevel) && tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
git clone -q --shared "$root" "$tmp/clone" && cd "$tmp/clone" || exit 2

field() { sed -n "1,/^\$/s/^$2: //p" "$1"; }
tests() { go test -vet=off -short -count=1 -timeout 8m -run "^($2)\$" "$3" "$1" >"$tmp/output" 2>&1 </dev/null; }
fail() { echo "FAILED $1: $2" && failed=yes; }
cell() { sed -E 's/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/…/g; s/</\&lt;/g; s/\|/\\|/g'; }
# said prints the test, a tab, and the start of its first message that matches $says.
said() {
  awk '/^ *--- FAIL: /{by = $3}
    sub(/^ +[a-z0-9_]+\.go:[0-9]+: /, "") || sub(/^panic: /, "") {
      if (by == "" || $0 !~ ENVIRON["says"]) next
      if (length($0) > 140) { $0 = substr($0, 1, 140); sub(/ [^ ]*$/, " …") }
      print by "\t" $0; exit
    }' "$tmp/output"
}

failed=
for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
  for patch in "$root/test/planted/P$n"/*.patch; do
    case " $* " in "  " | *" $(basename "$patch" .patch) "*) echo "$patch" ;; esac
  done
done >"$tmp/chosen"
[ -s "$tmp/chosen" ] || { echo "no planted bug is called $*" && exit 2; }

# The control: each test passes without a bug, and is not skipped.
while read -r patch; do field "$patch" Test; done <"$tmp/chosen" | sort -u >"$tmp/witnesses"
for package in $(cut -d' ' -f1 "$tmp/witnesses" | uniq); do
  names=$(grep "^$package " "$tmp/witnesses" | cut -d' ' -f2)
  tests "$package" "$(echo $names | tr ' ' '|')" -v
  for name in $names; do
    grep -q "^--- PASS: $name " "$tmp/output" || fail "$name of $package" "does not pass without a bug: $(grep -m 3 -E '\.go:[0-9]+:' "$tmp/output")"
  done
done
[ -z "$failed" ] || exit 1

while read -r patch; do
  bug=$(basename "$patch" .patch) && witness=$(field "$patch" Test) && says=$(field "$patch" Says) && export says
  git apply "$patch" || { fail "$bug" "the patch does not apply" && continue; }
  if tests $witness -failfast; then
    fail "$bug" "survives $witness"
  elif grep -qE '\[(build|setup) failed\]|build the( faulty)? service:' "$tmp/output"; then
    fail "$bug" "does not compile: $(grep -m 1 -E '\.go:[0-9]+:[0-9]+: ' "$tmp/output")"
  elif found=$(said) && [ -z "$found" ]; then
    fail "$bug" "$witness fails, but does not say \"$says\": $(grep -m 3 -E '\.go:[0-9]+: |^panic: ' "$tmp/output")"
  else
    printf '%s\t%s\n' "$bug" "$found"
    printf '| %s%s | %s | %s | `%s` | %s |\n' "$bug" "$(field "$patch" Seen-elsewhere | sed 's/yes/ †/')" "$(field "$patch" What | cell)" \
      "$(field "$patch" Promise | cell)" "${found%%	*}" "$(echo "${found#*	}" | cell)" >>"$tmp/rows"
  fi
  git checkout -q . && git clean -qfd
done <"$tmp/chosen"
[ -z "$failed" ] || exit 1
[ $# -eq 0 ] || exit 0
cat - "$tmp/rows" >"$root/docs/reliability/planted.md" <<END
# Planted bugs
Each row is a bug planted into the sources, and the test that catches it. \`make planted\` plants all of them, fails if one survives, and
writes this page; \`make planted ARGS=NAME\` plants one. Method and reasons: [decision 0010](../decisions/0010-planted-bugs.md). Bugs marked † are known from other
metering services, where they lost or doubled usage. This run: commit $(git rev-parse --short=12 HEAD), each test in its short form.

| bug | what it does | promise | caught by | its message |
|---|---|---|---|---|
END
