#!/usr/bin/env bash
# Runs all tests of the module and says at the end what really ran. Called by
# "make test", which has built bin/hutch and .bin/buf.
#
#   GO               the go command
#   RACE             packages whose tests run under the race detector
#   REQUIRE_ENGINES  engines whose absence is a failure
#   TEST_USER        as root: the ordinary user as whom the local driver is
#                    tested once more, made for the run if missing; empty: it
#                    is not
#   MAY_SKIP         reasons for which a test may be skipped, a regular
#                    expression; unset: as root those that are no fault of the
#                    machine, or of its network; as an ordinary user any
set -euo pipefail
cd "$(dirname "$0")/../../.."

work=$(mktemp -d)
made= # a user that this script made
clean_up() {
	rm -rf "$work"
	[ -z "$made" ] || userdel --remove "$made" 2>/dev/null || true
}
trap clean_up EXIT
chmod 755 "$work" # an ordinary user's tests write here too
export HUTCH_ENGINES_RAN="$work/engines"
touch "$HUTCH_ENGINES_RAN"
chmod 666 "$HUTCH_ENGINES_RAN"
export REQUIRE_ENGINES
export REQUIRE_PROTO=1
# Package test kills each process of a box this often, at random moments, for
# root and for two users. By hand it is 50; every run adds to the same odds.
export HUTCH_CRASH_ROUNDS="${HUTCH_CRASH_ROUNDS:-5}"
export HUTCH_HELPER="$PWD/bin/hutch" HUTCH_BIN="$PWD/bin/hutch"

"$GO" build -o "$work/testcount" ./internal/x/testcount
if [ -z "${MAY_SKIP+set}" ]; then
	MAY_SKIP=
	[ "$(id -u)" != 0 ] || MAY_SKIP="^(needs Debian's archive: set HUTCH_TEST_DEBIAN=1|this driver keeps no images|the engine cannot tell|this machine is not configured for an npm registry|.* cannot be reached from here: .*|none of the image's package sources can be reached)\$"
fi
count() { "$work/testcount" -totals "$work/totals" -may-skip "$MAY_SKIP" "$@"; }

# Each package once: with the race detector where that is cheap, else without.
# The longest come first, so that none of them is left to run alone at the end.
longest=$("$GO" list ./test ./box/local ./test/workspace)
plain="$longest $("$GO" list ./... | grep -vxFf <("$GO" list $RACE; echo "$longest"))"
status=0
echo "tests:"
count "$GO" test -json -timeout 60m $plain || status=1
echo "tests under the race detector:"
CGO_ENABLED=1 count "$GO" test -race -json -timeout 20m $RACE || status=1

# What is root's is not yet an ordinary user's: id maps, user namespaces, no
# control groups and no loop devices. So the driver's suite runs again, but for
# that of virtual machines, which differ less. (Package test does all of this by
# itself.)
as_user() {
	local user=$1 pkg=./box/local dir="$work/user"
	if ! id "$user" >/dev/null 2>&1; then
		useradd --create-home --shell /bin/bash "$user"
		made=$user
	fi
	mkdir -m 755 "$dir"
	# The checkout may be in a folder that the user cannot enter.
	install -m 755 bin/hutch "$dir/hutch"
	"$GO" test -c -o "$dir/test" "$pkg"
	HUTCH_HELPER="$dir/hutch" count "$GO" tool test2json -t -p "$pkg as $user" \
		runuser -u "$user" -- bash -c 'cd "$0"; exec ./test -test.v=test2json -test.timeout=60m -test.skip="^TestVM$"' "$dir"
}
if [ "$(id -u)" = 0 ] && [ -n "${TEST_USER:-}" ]; then
	echo "the local driver as an ordinary user:"
	as_user "$TEST_USER" || status=1
fi

count -engines "$HUTCH_ENGINES_RAN" -report || status=1
exit $status
