#!/bin/sh
# Many clients at once on a server in the test process: scripts/load_test.sh [SECONDS [CLIENTS]]; 600 and 64 otherwise.
# tests/server/load_test.cpp says what is checked.
set -eu
cd "$(dirname "$0")/.."
scripts/install_packages.sh build test
scripts/build.sh release server_test
M3_LOAD_SECONDS=${1:-600} M3_LOAD_CLIENTS=${2:-64} exec build/release/tests/server_test --gtest_filter='Load.*'
