#!/bin/bash
# Tests what is in this folder, each level more of it: vagrant/test.sh lint|package [12|13]|chroot [12|13]|boot|up
#   lint    shell syntax, settings, `vagrant validate` for both providers; seconds, any user
#   package the transport without the lab: pip installs it into a bare tree of Debian 12, or 13; then tests/transport/alone.py
#   chroot  provision.sh twice in a bare tree of Debian 12, or 13; the second time must change nothing. Then
#           `./lab check` and `./lab run quick` in it (root, mmdebstrap, rsync; minutes in which the machine should rest)
#   boot    the tree of `chroot 12` as a machine with its own kernel, in software emulation if need be; then its kernel is tried
#   up      the local box by a real `vagrant up`, provisioned by Vagrant; then its kernel is tried; then destroyed
# For machines whose package sources are configured in a special way:
#   LAB_TEST_CA=FOLDER      certificates (*.crt) that the tested system is to trust
#   LAB_TEST_COPY="FILE..." configuration of this machine's apt and pip, used in the tree at the same place
#   LAB_TEST_LOCK=FILE      is locked (flock) while networks run, for other users of this machine who do the same
#   LAB_TEST_BIND="DIR..."  folders of this machine that these name, visible in the tree while it is provisioned
# LAB_BUILD_DIR (default vagrant/build) keeps trees, images and boxes; what is there is not made again, except the tree.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
project=$(dirname "$here")
export LAB_BUILD_DIR=${LAB_BUILD_DIR:-$here/build}
build=$LAB_BUILD_DIR
tree=$build/tree
export LAB_RELEASE=bookworm
memory_mb=${LAB_MEMORY_MB:-4096}
began_s=$SECONDS

say() { printf 'test: %s (%d s)\n' "$*" $((SECONDS - began_s)) >&2; }
fail() { say "FAIL: $*"; exit 1; }
stop() { say "$*"; exit 2; }

# lint

lint() {
  local scratch script
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf $(printf %q "$scratch")" RETURN EXIT
  for script in "$here"/*.sh "$project/lab"; do
    bash -n "$script" || fail "$script"
    if command -v shellcheck >/dev/null; then
      shellcheck --exclude=SC1091 "$script" || fail "shellcheck $script"
    fi
  done
  say "shell syntax$(command -v shellcheck >/dev/null || echo ', without shellcheck')"
  if ! command -v vagrant >/dev/null; then
    say "vagrant is not installed: the Vagrantfile was not looked at"
    say "PASS lint"
    return
  fi
  # Nothing of the user's: `validate` would silently take the provider of an existing machine.
  export VAGRANT_HOME=$scratch/home VAGRANT_DOTFILE_PATH=$scratch/state VAGRANT_CHECKPOINT_DISABLE=1
  export VAGRANT_CWD=$here
  mkdir "$scratch/bin"
  printf '#!/bin/sh\necho 7.0.20r163906\n' >"$scratch/bin/VBoxManage"
  chmod +x "$scratch/bin/VBoxManage"
  validate_all "$scratch"
  say "PASS lint"
}

# Vagrant's own word, in a call of its own: PROVIDER [VARIABLE=VALUE...]
validate() {
  local provider=$1
  shift
  env "$@" PATH="$scratch_bin:$PATH" VAGRANT_DEFAULT_PROVIDER="$provider" vagrant validate 2>&1
}

validate_all() {
  local scratch=$1 output provider words
  scratch_bin=$scratch/bin
  for provider in libvirt virtualbox; do
    output=$(validate $provider LAB_MACHINES=2 LAB_DRIVER=qemu LAB_TORCH=0) || {
      if [ $provider = libvirt ] && grep -qi 'provider.*could not be found\|No usable default provider' <<<"$output"; then
        say "vagrant-libvirt is not installed: that provider's block was not looked at"
        continue
      fi
      fail "vagrant validate for $provider: $output"
    }
    say "vagrant validate, $provider"
  done
  # A check that cannot fail is none: what is wrong must be found.
  for words in "LAB_CPUS=many;1 to 256" "LAB_MEMORY_MB=12;1024 to" "LAB_DRIVER=xen;kvm, qemu" "LAB_TORCH=yes;0, 1" \
    "LAB_MACHINES=0;1 to 32" "LAB_BOX=a b;a box's name" "LAB_BOOT_TIMEOUT_S=-1;10 to"; do
    if output=$(validate virtualbox "${words%;*}"); then
      fail "${words%;*} was accepted"
    fi
    [[ $output == *"lab: ${words%%=*} is"*"${words#*;}"* ]] || fail "${words%;*}: $output"
  done
  mkdir "$scratch/broken"
  cp "$here/not-synced.txt" "$scratch/broken/"
  sed 's/virtualbox.memory =/virtualbox.memmory =/' "$here/Vagrantfile" >"$scratch/broken/Vagrantfile"
  if output=$(validate virtualbox VAGRANT_CWD="$scratch/broken"); then
    fail "a misspelt setting of virtualbox was accepted"
  fi
  say "wrong settings are refused"
}

# chroot

in_tree() {  # COMMAND... in a mount, PID and host name space of its own; nothing is left mounted
  unshare --mount --pid --uts --ipc --fork --kill-child bash -ec '
    tree=$1 folders=$2
    shift 2
    mount --make-rprivate /
    mount --bind "$tree" "$tree"
    mount -t proc proc "$tree/proc"
    mount -t sysfs -o ro sysfs "$tree/sys"
    mount --rbind /dev "$tree/dev"
    mount -t tmpfs tmpfs "$tree/run"
    for folder in $folders; do
      mkdir -p "$tree$folder"
      mount --bind "$folder" "$tree$folder"
      mount -o remount,bind,ro "$tree$folder"
    done
    cd "$tree"
    pivot_root . .  # and no chroot, in which an ordinary user could not make namespaces
    umount -l .
    cd /
    exec "$@"' - "$tree" "${LAB_TEST_BIND:-}" "$@"
}

in_tree_clean() {  # COMMAND... with nothing of this machine's environment but what pip and the set-up need
  local given=()
  # shellcheck disable=SC2207
  given=($(env | grep -E '^(PIP_[A-Z_]+|LAB_TORCH|LAB_TORCH_INDEX_URL|https?_proxy|no_proxy)=\S*$' | grep -vE '^PIP_(CERT|CACHE_DIR)=' || true))
  in_tree env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    "${given[@]}" "$@"
}

provision_tree() { in_tree_clean env LAB_NO_KERNEL=1 bash /vagrant/vagrant/provision.sh; }

snapshot() {
  find "$tree" -xdev \( -path "$tree/tmp" -o -path "$tree/dev" -o -path "$tree/root/.cache" \) -prune -o \
    -not -type d -printf '%p %s %T@ %m %u %l\n' | sort
}

put_project() {
  rsync -a --delete --exclude-from="$here/not-synced.txt" --exclude=/vagrant/ca/ --exclude=/vagrant/wheels/ "$project/" "$tree/vagrant/"
  if [ -n "${LAB_TEST_CA:-}" ]; then
    install -D -m 644 -t "$tree/vagrant/vagrant/ca" "$LAB_TEST_CA"/*.crt
  fi
}

# Only while the tree is provisioned it has this machine's configuration of apt and pip.
lend() {
  local file
  for file in ${LAB_TEST_COPY:-}; do
    install -D -m 644 "$file" "$tree$file"
  done
}

take_back() {
  local file
  for file in ${LAB_TEST_COPY:-}; do
    rm -f "$tree$file"
  done
}

fresh_tree() {  # LEVEL [12|13]
  local bare=$build/bare.tar
  case ${2:-12} in
    12) ;;
    13) LAB_RELEASE=trixie tree=$build/tree-13 bare=$build/bare-13.tar ;;
    *) stop "$1 '$2': valid: 12, 13" ;;
  esac
  [ "$(id -u)" = 0 ] || stop "$1 needs root"
  mkdir -p "$build"
  [ -e "$bare" ] || bash "$here/build-box.sh" tree "$bare"
  rm -rf --one-file-system "$tree"
  mkdir "$tree"
  tar -C "$tree" --numeric-owner -xf "$bare"
  printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
  chmod +x "$tree/usr/sbin/policy-rc.d"
  cp --remove-destination /etc/resolv.conf "$tree/etc/resolv.conf"
  lend
  put_project
  say "unpacked"
}

package_level() {  # [12|13]
  fresh_tree package "$@"
  in_tree_clean sh -ec '
    cp /vagrant/vagrant/ca/*.crt /usr/local/share/ca-certificates/ 2>/dev/null && update-ca-certificates >/dev/null
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    python3 -m venv /root/transport
    cd /root/transport/bin
    ./pip install --quiet /vagrant
    ./pip list
    ./python -I /vagrant/tests/transport/alone.py
    ! ./python -I -m testbed list' || fail "the package"
  take_back
  say "PASS package"
}

chroot_level() {  # [12|13]
  fresh_tree chroot "$@"
  provision_tree || fail "provision.sh, first time"
  say "provisioned"
  snapshot >"$build/first.txt"
  provision_tree || fail "provision.sh, second time"
  say "provisioned again"
  snapshot >"$build/second.txt"
  diff "$build/first.txt" "$build/second.txt" >"$build/changed.txt" || {
    head -20 "$build/changed.txt" >&2
    fail "the second run changed $(grep -c '^[<>]' "$build/changed.txt") files"
  }
  take_back
  cmp "$here/modules.conf" "$tree/etc/modules-load.d/lab.conf" || fail "modules.conf"
  in_tree /vagrant/.venv/bin/python -c 'import mininet.net, nftables, ryu, yaml, testbed.experiment' || fail "imports"
  quick_level
  say "PASS chroot"
}

quick_level() {  # the two commands of the README, as far as a test of the set-up needs them
  if [ -n "${LAB_TEST_LOCK:-}" ]; then
    exec 8>"$LAB_TEST_LOCK"
    flock 8
  fi
  in_tree_clean sh -c 'cd /vagrant && ./lab check' || fail "./lab check"
  # Other programs on this machine may make a run invalid, which is exit status 1 and not the set-up's fault.
  in_tree_clean sh -c 'cd /vagrant && ./lab run quick --retries 0 --out /root/quick; [ $? -le 1 ]' || fail "./lab run quick"
  in_tree_clean sh -c 'cd /vagrant && .venv/bin/python -' <<'END' || fail "what the runs say"
import collections, json, pathlib
folders = [each.parent for each in pathlib.Path("/root/quick/quick").glob("*/status.json")]
statuses = collections.Counter(json.loads((each / "status.json").read_text())["verdict"] for each in folders)
manifests = [json.loads((each / "manifest.json").read_text()) for each in folders]
ran = {(each["distribution"], each["python"], *each["controller"].values()) for each in manifests}
print("quick:", dict(statuses), *ran)
assert len(ran) == 1
assert statuses.keys() <= {"ok", "invalid"}, statuses
END
}

# boot

boot() {
  [ -e "$tree/vagrant/.venv/ready" ] || chroot_level
  lend
  put_project
  provision_tree || fail "provision.sh"
  take_back
  local image=$build/boot.qcow2 key=$build/key port log=$build/boot.log
  rm -f "$key" "$key.pub"
  ssh-keygen -q -t ed25519 -N '' -f "$key"
  LAB_PUBLIC_KEY=$(cat "$key.pub") bash "$here/build-box.sh" image "$tree" "$image"
  say "image of $(du -h "$image" | cut -f1)"
  start_machine "$image" "$log"
  say "the machine answers"
  stock_kernel guest || fail "the kernel"
  [ -n "${LAB_TEST_KEEP:-}" ] || stop_machine
  say "PASS boot"
}

start_machine() {  # IMAGE LOG
  local accelerator=("tcg,thread=multi" -cpu max) pid
  if [ -w /dev/kvm ] && grep -qwE 'svm|vmx' /proc/cpuinfo; then
    accelerator=(kvm -cpu host)
  fi
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  qemu-system-x86_64 -accel "${accelerator[@]}" -smp "${LAB_CPUS:-2}" -m "$memory_mb" -display none -no-reboot \
    -serial "file:$2" -drive "file=$1,if=virtio,format=qcow2,cache=unsafe" -device virtio-rng-pci \
    -nic "user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:$port-:22" </dev/null >"$2.qemu" 2>&1 &
  pid=$!
  machine=$pid
  echo "$pid $port" >"$build/machine"
  trap 'stop_machine' EXIT
  local deadline_s=$((SECONDS + ${LAB_BOOT_TIMEOUT_S:-600}))
  until guest true 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || fail "the machine ended: $(tail -n 3 "$2.qemu" "$2")"
    [ $SECONDS -lt $deadline_s ] || fail "no answer by ssh; the console: $(tail -n 5 "$2")"
    sleep 1
  done
}

guest() {
  local port
  read -r _ port <"$build/machine"
  ssh -q -i "$build/key" -p "$port" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=5 \
    vagrant@127.0.0.1 "$@"
}

stop_machine() {  # as long as it is a child of this shell, its number is nobody else's
  [ -n "${LAB_TEST_KEEP:-}" ] || ! jobs -p | grep -qx "${machine:-none}" || kill "$machine"
}

stock_kernel() {  # COMMAND...: how to run something in the machine
  "$@" 'cd /vagrant && sudo ./lab check --json' | python3 -c '
import json, sys
stock = ("switch-kernel", "netem", "ecn-marking", "even-bursts", "tcp-")
lacking = [name for name, each in json.load(sys.stdin).items() if name.startswith(stock) and not each["available"]]
sys.exit(", ".join(lacking))' && "$@" 'cd /vagrant && sudo ./lab test tests/lab/test_links.py -k marking'
}

# up

up() {
  command -v vagrant >/dev/null || stop "vagrant is not installed"
  export VAGRANT_CWD=$here VAGRANT_CHECKPOINT_DISABLE=1 LAB_BOX=${LAB_BOX:-lab/bookworm}
  if [ -z "${LAB_DRIVER:-}" ]; then
    export LAB_DRIVER=qemu
    if [ -w /dev/kvm ] && grep -qwE 'svm|vmx' /proc/cpuinfo; then LAB_DRIVER=kvm; fi
  fi
  vagrant box list | grep -qF "$LAB_BOX " || bash "$here/build-box.sh" box
  if [ -n "${LAB_TEST_CA:-}" ]; then
    install -D -m 644 -t "$here/ca" "$LAB_TEST_CA"/*.crt
  fi
  say "box $LAB_BOX"
  vagrant up --provider=libvirt || fail "vagrant up (run it again to continue, or vagrant destroy)"
  say "up and provisioned"
  vagrant provision || fail "vagrant provision, second time"
  say "provisioned again"
  stock_kernel vagrant ssh lab-1 -c || fail "the kernel"
  say "the kernel has what a stock one has"
  # An emulated processor may make a run invalid, which is exit status 1 and not this folder's fault.
  vagrant ssh lab-1 -c 'cd /vagrant && ./lab run quick --arms dblp --seeds 1 --retries 0; [ $? -le 1 ]' || fail "./lab run"
  bash "$here/results.sh" lab-1 "$build/results" || fail "results.sh"
  [ -n "$(find "$build/results" -name rounds.jsonl)" ] || fail "results.sh brought no results"
  [ -n "${LAB_TEST_KEEP:-}" ] || vagrant destroy -f
  say "PASS up"
}

case "${1:-}" in
  lint) lint ;;
  package) package_level "${2:-12}" ;;
  chroot) chroot_level "${2:-12}" ;;
  boot) boot ;;
  up) up ;;
  *) stop "which level? valid: lint, package [12|13], chroot [12|13], boot, up" ;;
esac; exit  # this file may change meanwhile
