#!/bin/bash
# Builds the Debian packages from a release's tarball, asks lintian, and installs, tests and purges them in a fresh Debian 12.
# Needs a commit of what is to be packaged, root (for the chroot), debhelper, lintian and debootstrap, and a mirror; takes minutes. Ends
# with a line `N passed, N failed`.
# Usage: tests/pack/debian.sh [FOLDER for the packages; default: a temporary one]
#   $DEB_BUILD_OPTIONS   e.g. nocheck
#   $DEBIAN_MIRROR       default: the one that apt uses here for bookworm
#   $DEBIAN_CHROOT       a folder where `debootstrap --variant=minbase bookworm` was run, to copy instead of doing it anew
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
root=$work/root
packages=${1:-$work/packages}
trap 'rm -rf --one-file-system "$work"' EXIT
passed=0 failed=0

check() { # name command...
    local name=$1 log=$work/log
    shift
    if "$@" > "$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        tail -n 40 "$log"
    fi
}

build_packages() {
    mkdir -p "$work/source" "$packages" && tar -xf "$work"/tarball/* -C "$work/source" &&
        (cd "$work"/source/replayssm-* && dpkg-buildpackage -us -uc) && find "$work/source" -maxdepth 1 -type f -exec mv -t "$packages" {} +
}

# Every tag that lintian prints has to be explained, and every explanation has to be needed.
lintian_as_explained() {
    lintian --allow-root -I --pedantic "$packages"/replayssm_*.changes | sed -n 's/^[EWIP]: [^:]*: \([a-z-]*\).*/\1/p' | sort -u > "$work/said"
    sed -n '/^What lintian still says/,$ s/^  \([a-z-]*\): .*/\1/p' debian/README.source | sort -u | diff "$work/said" -
}

# Runs a command in the chroot, with a /proc that ends with it. All but proc is the chroot's own.
inside() {
    # shellcheck disable=SC2016
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" env -i HOME=/root LC_ALL=C.UTF-8 \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' "$root" "$@"
}

apt_mirror() { apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' | awk '$2 == "bookworm" { print $1; exit }'; }

make_root() {
    if [ -n "${DEBIAN_CHROOT:-}" ]; then
        cp -a "$DEBIAN_CHROOT" "$root"
    else
        debootstrap --variant=minbase bookworm "$root" "${DEBIAN_MIRROR:-$(apt_mirror)}"
    fi && inside apt-get update -q && inside apt-get install -y -q --no-install-recommends gcc libc6-dev pkg-config && mkdir "$root/debs" &&
        cp "$packages"/replayssm_*.deb "$packages"/replayssm-dev_*.deb "$root/debs"
}

# Path, kind, mode and size of all files but the logs, lists and status of apt and dpkg themselves.
files() {
    (cd "$root" && find . -xdev \( -path ./var/log -o -path ./var/cache/apt -o -path ./var/lib/apt -o -path './var/lib/dpkg/status*' \
        -o -path './var/lib/dpkg/lock*' -o -path ./var/lib/dpkg/triggers -o -path './var/cache/ldconfig' \) -prune \
        -o ! -path './var/lib/dpkg' ! -path './tmp' -printf '%p %y %m %s %l\n' | sort)
}

install_packages() { inside sh -c 'apt-get install -y -q --no-install-recommends /debs/*.deb'; }
purge_packages() { inside apt-get purge -y -q --auto-remove replayssm replayssm-dev; }

check "tarball" tests/pack/dist.sh "$work/tarball"
check "dpkg-buildpackage" build_packages
check "lintian says what is explained" lintian_as_explained
check "a fresh Debian 12" make_root
files > "$work/before"
check "install" install_packages
files > "$work/between"
check "something was installed" grep -q '^./usr/bin/replayssm-run f' "$work/between"
cp debian/tests/installed "$root/installed"
check "the installed packages work" inside sh /installed
rm -f "$root/installed"
check "purge" purge_packages
files > "$work/after"
check "nothing is left" diff "$work/before" "$work/after"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
