#!/usr/bin/env bash
# prerequisites.sh: checks that this machine can build and run everything; installs missing Debian packages itself when it may.
# Exit code 0: all is there. Otherwise each line says what is missing and what to do.
set -uo pipefail

missing=()  # what a person has to do
packages=() # what Debian's package manager can do

have() { command -v "$1" >/dev/null 2>&1; }

# at_least FOUND WANTED: versions, compared part by part.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" = "$2" ]; }

# tool COMMAND PACKAGE: a program, or the Debian package that brings it.
tool() { have "$1" || packages+=("$2"); }

check_rust() {
  if ! have cargo; then
    missing+=("Rust 1.95 or newer: https://rustup.rs")
    return
  fi
  local found
  found=$(rustc --version | cut -d' ' -f2)
  at_least "$found" 1.95 || missing+=("Rust 1.95 or newer (found $found): rustup update stable")
}

check_go() {
  # Without Go the world takes the NATS server from a wheel.
  if have go; then
    local found
    found=$(go env GOVERSION | sed 's/^go//')
    at_least "$found" 1.24 || missing+=("Go 1.24 or newer (found $found): https://go.dev/dl")
  else
    missing+=("Go 1.24 or newer: https://go.dev/dl")
  fi
}

# A JDK 17: Cassandra 5.0 starts on no other.
check_java() {
  local home
  for home in "${JAVA_HOME:-}" /usr/lib/jvm/* /usr/java/* /opt/java/* /opt/*; do
    [ -x "$home/bin/java" ] && [ -r "$home/release" ] && grep -q '^JAVA_VERSION="17[.\"]' "$home/release" && return
  done
  packages+=(openjdk-17-jdk-headless)
}

check_python() {
  local python=python3
  have python3.11 && python=python3.11
  if ! have "$python"; then
    packages+=(python3 python3-venv)
  elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    missing+=("Python 3.9 or newer, 3.11 by preference (found $("$python" --version))")
  elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    packages+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
  fi
}

# Namespaces and TUN: the regions are made of them.
check_kernel() {
  [ -e /dev/net/tun ] || missing+=("/dev/net/tun (kernel module tun): modprobe tun")
  if [ "$(id -u)" != 0 ] && ! unshare --user --map-root-user --net true 2>/dev/null; then
    missing+=("permission to make user and network namespaces (or run as root): sysctl kernel.unprivileged_userns_clone=1")
  fi
}

# install PACKAGES: as root, or with a sudo that asks nothing; else says the line.
install_packages() {
  local as=()
  if [ "$(id -u)" != 0 ]; then
    as=(sudo -n)
    if ! sudo -n true 2>/dev/null; then
      missing+=("Debian packages: sudo apt-get install -y --no-install-recommends $*")
      return
    fi
  fi
  if ! have apt-get; then
    missing+=("what Debian calls: $*")
    return
  fi
  echo "prerequisites: installing $*"
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  "${as[@]}" "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
  # Lists of packages may be absent or old.
  "${as[@]}" "${quiet[@]}" update >/dev/null &&
    "${as[@]}" "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null ||
    missing+=("Debian packages: apt-get install -y --no-install-recommends $*")
}

check_rust
check_go
check_java
check_python
check_kernel
tool mvn maven
tool cc gcc
tool c++ g++
tool make make
tool perl perl
tool setpriv util-linux
# librdkafka is built from source and links with zlib.
[ -e /usr/include/zlib.h ] || packages+=(zlib1g-dev)

if [ "${#packages[@]}" != 0 ]; then
  install_packages "${packages[@]}"
fi
if [ "${#missing[@]}" != 0 ]; then
  printf 'prerequisites: missing: %s\n' "${missing[@]}" >&2
  exit 1
fi
echo "prerequisites: all there"
