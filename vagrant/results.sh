#!/bin/bash
# Brings results back from the machine, those that are not here yet: vagrant/results.sh [MACHINE [FOLDER]]
# Default: of lab-1, into runs/ of this checkout. Nothing here is deleted.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
machine=${1:-lab-1}
target=$(readlink -m "${2:-$here/../runs}")
cd "$here"
configuration=$(mktemp)
trap 'rm -f "$configuration"' EXIT
vagrant ssh-config "$machine" >"$configuration" || { echo "results: is $machine up? (vagrant status)" >&2; exit 2; }
mkdir -p "$target"
rsync -a -e "ssh -F $configuration" "$machine:/vagrant/runs/" "$target/" ||
  { echo "results: nothing could be brought from $machine:/vagrant/runs (has ./lab run been run there?)" >&2; exit 2; }
echo "results: $(readlink -f "$target")" >&2
