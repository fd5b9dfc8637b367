#!/bin/sh
# Installs the Debian packages of one or more groups of scripts/packages.txt, those that are missing only:
#   scripts/install_packages.sh build test
# Calls apt as root, or through sudo; M3_SKIP_PACKAGES=1 skips the whole check. All output goes to stderr.
set -eu
exec 1>&2

if [ "${M3_SKIP_PACKAGES:-}" = 1 ]; then exit 0; fi

list=$(dirname "$0")/packages.txt
wanted=
for group in "$@"; do
  packages=$(awk -v group="$group" '$1 == group { print $2 }' "$list")
  if [ -z "$packages" ]; then
    echo "install_packages.sh: no group '$group'; known: $(awk '!/^#/ && NF { print $1 }' "$list" | sort -u | tr '\n' ' ')"
    exit 2
  fi
  wanted="$wanted $packages"
done
wanted=$(printf '%s\n' $wanted | sort -u)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "m3: this system has no apt, so packages cannot be checked here. Install the equivalents of these Debian"
  echo "m3: packages yourself, then run the command again with M3_SKIP_PACKAGES=1 set:"
  echo "m3:  " $wanted
  exit 1
fi

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null | awk '$2 == "installed" { print $1 }')
missing=
for package in $wanted; do
  printf '%s\n' "$installed" | grep -qx -- "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then exit 0; fi

echo "m3: these Debian packages are needed and missing:"
for package in $missing; do
  awk -v package="$package" -v groups=" $* " \
    '$2 == package && index(groups, " " $1 " ") { $1 = $2 = ""; printf "m3:   %-20s%s\n", package, $0; exit }' "$list"
done

explain() {
  echo "m3: $1 Ask an administrator to run"
  echo "m3:   apt-get update && apt-get install -y --no-install-recommends$missing"
  echo "m3: and then run this command again."
  exit 1
}

as_root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || explain "Installing needs root, and there is no sudo here."
  # Without a terminal nobody can type a password.
  if [ -t 0 ]; then as_root=sudo; else as_root="sudo -n"; fi
  $as_root true || explain "Installing needs root, and sudo refuses it to $(id -un)."
fi

echo "m3: installing them with ${as_root:+sudo }apt-get"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { # apt-get, shown on a terminal and kept for an error message elsewhere
  if [ -t 1 ]; then
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null
  else
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 </dev/null
  fi
}
install() { apt install -y --no-install-recommends $missing; }

# The lists of available packages are fetched only where they are absent or turn out to be too old.
if { apt-cache show --no-all-versions $missing >/dev/null 2>&1 && install; } || { apt update && install; }; then
  echo "m3: installed$missing"
else
  tail -n 15 "$log"
  explain "apt-get failed; the lines above say why (it needs the network)."
fi
