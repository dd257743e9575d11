#!/bin/bash
# Makes a Debian 12 or 13 machine ready for the lab: certificates, kernel modules, packages, .venv.
#   Vagrant runs it; by hand: sudo vagrant/provision.sh; without a kernel of its own (a chroot): LAB_NO_KERNEL=1
# Every step looks first and does only what is missing, so that running it again continues.
# Packages and .venv are ./lab's own set-up: there is no second way to install anything.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
project=$(dirname "$here")
step="begin"

say() { printf 'provision: %s\n' "$*" >&2; }
stop() { trap - ERR; say "$*"; exit 2; }
trap 'stop "step \"$step\" failed; what went wrong stands above; run provision.sh again to continue"' ERR

begin() {
  step=$1
  say "$step"
}

begin "looking at the system"
[ "$(id -u)" = 0 ] || stop "needs root: sudo $here/provision.sh"
version=$(. /etc/os-release && echo "${ID:-} ${VERSION_ID:-}")
case $version in
  "debian 12" | "debian 13") ;;
  *) say "tested on debian 12 and 13; this is '$version': trying the same steps" ;;
esac
owner=$(stat -c %U "$project")
id "$owner" >/dev/null 2>&1 || stop "$project belongs to nobody known here ($owner): chown it to a user"

begin "certificates"  # of a proxy that breaks TLS open, for example: vagrant/ca/*.crt
changed=
for certificate in "$here"/ca/*.crt; do
  [ -e "$certificate" ] || continue
  grep -q -- '-----BEGIN CERTIFICATE-----' "$certificate" || stop "$certificate: not a PEM certificate"
  target=/usr/local/share/ca-certificates/lab-$(basename "$certificate")
  cmp -s "$certificate" "$target" && continue
  install -D -m 644 "$certificate" "$target"
  changed=yes
done
if [ -n "$changed" ] || ! command -v update-ca-certificates >/dev/null; then
  if ! command -v update-ca-certificates >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates >/dev/null
  fi
  update-ca-certificates >/dev/null
fi

if [ -z "${LAB_NO_KERNEL:-}" ]; then
  begin "kernel modules, now and at every boot"
  cmp -s "$here/modules.conf" /etc/modules-load.d/lab.conf || install -m 644 "$here/modules.conf" /etc/modules-load.d/lab.conf
  absent=
  while read -r module; do
    modprobe --quiet "$module" || absent+="$module "
  done < <(grep -v '^#' "$here/modules.conf")
  [ -z "$absent" ] || stop "the kernel $(uname -r) lacks $absent: apt-get install linux-image-amd64, reboot, run this again"
else
  begin "kernel modules, at every boot of what this becomes"
  cmp -s "$here/modules.conf" /etc/modules-load.d/lab.conf || install -D -m 644 "$here/modules.conf" /etc/modules-load.d/lab.conf
fi

begin "system packages (./lab --packages)"
"$project/lab" --packages

begin "the project and its Python packages (./lab)"
if [ "$owner" = root ]; then
  "$project/lab" --version
else
  # As the one who will use it: .venv and results must be theirs.
  runuser -u "$owner" -- env HOME="$(getent passwd "$owner" | cut -d: -f6)" "$project/lab" --version
fi
say "done; next: ./lab check"
