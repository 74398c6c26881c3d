#!/usr/bin/env bash
# test.sh [live]: unit tests (unless `live`), then the live tests inside a region with real engines.
# The last line sums both up: `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/../.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

echo "test: building all tests"
# The whole workspace at once, also where only a part is run: one set of features, so nothing is built twice.
cargo test --release --locked --workspace --no-run || exit 1

if [ "${1:-all}" != live ]; then
  echo "test: unit tests"
  cargo test --release --locked --workspace --exclude live --no-fail-fast 2>&1 | tee -a "$log" || status=1
fi

echo "test: live tests on real engines"
target/release/native run --regions 2 --engines-only --inside fra -- \
  cargo test --release --locked --offline --workspace --no-fail-fast --test 'live_*' -- --test-threads 4 2>&1 | tee -a "$log" || status=1

passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
failed=$(awk '/^test result:/ { sum += $6 } END { print sum + 0 }' "$log")
if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
  echo "test: a test program did not run to its end; its message is above" >&2
  failed=1
fi
echo "$passed passed, $failed failed"
exit "$status"
