#!/bin/sh
# Fetches the source package (.tar.gz) of a Python project with pip and checks it:
#   scripts/fetch_source_package.sh NAME VERSION SHA256 FOLDER [BUILD_BACKEND]
# Nothing is built and no code of the package runs: pip asks a source package's build backend for its metadata before
# it keeps the file, and gets the answer from a stand-in here. Prints nothing when all went well.
set -eu
name=$1 version=$2 sha256=$3 folder=$4 backend=${5:-scikit_build_core.build}

fail() {
  echo "m3: $name $version cannot be fetched: $1"
  exit 1
}
command -v python3 >/dev/null || fail "there is no python3"
python3 -m pip --version >/dev/null 2>&1 || fail "there is no pip (Debian: python3-pip)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
module=$work/backend/$(printf '%s' "$backend" | tr . /)
mkdir -p "$(dirname "$module")" "$work/files"
cat >"$module.py" <<'PYTHON'
import os

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name, version = os.environ["M3_PACKAGE"], os.environ["M3_PACKAGE_VERSION"]
    made = f"{name}-{version}.dist-info"
    os.makedirs(os.path.join(folder, made))
    with open(os.path.join(folder, made, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return made

def build_wheel(*arguments, **options):
    raise RuntimeError("nothing is built here")
PYTHON

printf '%s==%s --hash=sha256:%s\n' "$name" "$version" "$sha256" >"$work/wanted"
if ! M3_PACKAGE=$name M3_PACKAGE_VERSION=$version PYTHONPATH=$work/backend \
    python3 -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-binary "$name" \
    --no-build-isolation --require-hashes --dest "$work/files" --requirement "$work/wanted" >"$work/log" 2>&1; then
  grep -q 'DO NOT MATCH THE HASHES' "$work/log" && fail "what pip found is another file (its sha256 differs)"
  fail "pip says: $(grep -v '^WARNING' "$work/log" | grep . | tail -n 1)"
fi
file=$(ls "$work/files")
printf '%s  %s\n' "$sha256" "$work/files/$file" | sha256sum --check --status || fail "its sha256 is not $sha256"
mkdir -p "$folder"
mv "$work/files/$file" "$folder/$file"
