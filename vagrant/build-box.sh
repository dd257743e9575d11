#!/bin/bash
# Builds a Vagrant box of Debian 12 for libvirt, where no public one can be downloaded. Needs root, mmdebstrap,
# qemu-system-x86 and qemu-utils; takes some minutes.
#   vagrant/build-box.sh                    all of it: vagrant/build/bookworm.box, added to Vagrant as lab/bookworm
#   vagrant/build-box.sh tree TAR           the bare system as an archive
#   vagrant/build-box.sh image TREE QCOW2   a bootable disk of an unpacked system (which gets the user vagrant)
# LAB_MIRROR names a Debian mirror other than mmdebstrap's own choice. LAB_RELEASE=trixie makes a tree of Debian 13.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
build=${LAB_BUILD_DIR:-$here/build}
packages=(linux-image-amd64 systemd-sysv dbus openssh-server sudo ca-certificates ifupdown isc-dhcp-client
          iproute2 kmod rsync grub-pc)
release=${LAB_RELEASE:-bookworm}
disk_gib=20
# Vagrant's public, "insecure" key: it replaces it at the first start.
public_key="ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEA6NF8iallvQVp22WDkTkyrtvp9eWW6A8YVr+kz4TjGYe7gHzIw+niNltGEFHzD8+v1I2YJ6oXevct1YeS0o9HZyN1Q9qgCgzUFtdOKLv6IedplqoPkcmF0aYet2PkEDo3MlTBckFXPITAMzF8dJSIFo9D8HfdOV0IAdx4O7PtixWKn5y2hMNG0zQPyUecp4pzC6kivAIhyfHilFR61RGL+GPXQ2MWZWFYbAGjyiYJnAmCP3NOTd0jMZEnDkbUvxhMmBYSdETk1rRgm+R4LOzFUGaHqHDLKLX+FIPKcF96hrucXzcWyLbIbEgE98OHlnVYCzRdK8jlqm8tehUc9c9WhQ== vagrant insecure public key"

say() { printf 'build-box: %s\n' "$*" >&2; }
stop() { say "$*"; exit 2; }

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
      stop "$program is not installed: apt-get install mmdebstrap qemu-system-x86 qemu-utils fdisk e2fsprogs"
  done
}

make_tree() {  # TAR
  need mmdebstrap
  say "bare Debian $release into $1"
  local include
  include=$(IFS=,; echo "${packages[*]}")
  # In a mount namespace of its own: when it is killed, nothing of this machine stays mounted below the new tree.
  # shellcheck disable=SC2086
  unshare --mount --propagation private \
    mmdebstrap --quiet --variant=important --format=tar --include="$include" "$release" "$1.part" ${LAB_MIRROR:-} ||
    stop "mmdebstrap failed: is there a network? (LAB_MIRROR=http://... names another mirror)"
  mv "$1.part" "$1"
}

configure() {  # TREE: what a box must have beyond the packages
  local tree=$1
  grep -q '^vagrant:' "$tree/etc/passwd" || chroot "$tree" useradd --create-home --shell /bin/bash vagrant
  install -d -m 700 "$tree/home/vagrant/.ssh"
  printf '%s\n' "$public_key" ${LAB_PUBLIC_KEY:+"$LAB_PUBLIC_KEY"} >"$tree/home/vagrant/.ssh/authorized_keys"
  chroot "$tree" chown -R vagrant:vagrant /home/vagrant/.ssh
  [ ! -d "$tree/vagrant" ] || chroot "$tree" chown -R vagrant:vagrant /vagrant
  echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$tree/etc/sudoers.d/vagrant"
  chmod 440 "$tree/etc/sudoers.d/vagrant"
  printf 'auto lo\niface lo inet loopback\nallow-hotplug eth0\niface eth0 inet dhcp\n' >"$tree/etc/network/interfaces"
  echo 'LABEL=lab-root / ext4 errors=remount-ro 0 1' >"$tree/etc/fstab"
  echo bookworm >"$tree/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 bookworm\n::1 localhost ip6-localhost\n' >"$tree/etc/hosts"
  sed -i -e 's/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=0/' -e 's/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX="net.ifnames=0 console=tty0 console=ttyS0"/' \
    "$tree/etc/default/grub"
  rm -f "$tree/usr/sbin/policy-rc.d" "$tree/etc/resolv.conf"
  touch "$tree/etc/resolv.conf"
}

accelerator() {
  if [ -w /dev/kvm ] && grep -qwE 'svm|vmx' /proc/cpuinfo; then
    echo kvm -cpu host
  else
    echo tcg,thread=multi -cpu max
  fi
}

make_image() {  # TREE QCOW2
  need sfdisk mke2fs qemu-img qemu-system-x86_64
  local tree=$1 image=$2 raw=$2.raw log=$2.grub.log
  configure "$tree"
  # GRUB can only be installed from inside: one start with the kernel handed over.
  local once=/usr/local/sbin/lab-make-bootable
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nset -e\ngrub-install /dev/vda\nupdate-grub\nrm "$0"\nsync\necho BOOTABLE=yes >/dev/console\n' >"$tree$once"
  chmod +x "$tree$once"
  say "disk image $image"
  rm -f "$raw" "$image"
  truncate -s "${disk_gib}G" "$raw"
  echo 'start=2048,type=83,bootable' | sfdisk -q "$raw"
  mke2fs -q -t ext4 -L lab-root -E offset=1048576 -d "$tree" "$raw" $((disk_gib * 1024 * 1024 - 1024))k
  say "installing GRUB inside (one start)"
  # shellcheck disable=SC2046
  timeout 600 qemu-system-x86_64 -accel $(accelerator) -smp 2 -m 2048 -display none -no-reboot \
    -serial "file:$log" -nic none -drive "file=$raw,if=virtio,format=raw,cache=unsafe" \
    -kernel "$(echo "$tree"/boot/vmlinuz-*)" -initrd "$(echo "$tree"/boot/initrd.img-*)" \
    -append 'root=/dev/vda1 rw console=ttyS0 net.ifnames=0 systemd.run='"$once"' systemd.run_success_action=poweroff systemd.run_failure_action=poweroff' ||
    stop "the machine did not come to an end: see $log"
  rm -f "$tree$once"
  grep -q 'BOOTABLE=yes' "$log" || stop "GRUB could not be installed: see $log"
  qemu-img convert -O qcow2 "$raw" "$image"
  rm -f "$raw"
}

make_box() {
  local folder=$build/box box=$build/bookworm.box
  mkdir -p "$folder"
  [ -e "$build/bare.tar" ] || make_tree "$build/bare.tar"
  rm -rf --one-file-system "$build/bare"
  mkdir -p "$build/bare"
  tar -C "$build/bare" --numeric-owner -xf "$build/bare.tar"
  make_image "$build/bare" "$folder/plain.qcow2"
  say "compressing"
  qemu-img convert -c -O qcow2 "$folder/plain.qcow2" "$folder/box.img"
  printf '{"provider":"libvirt","format":"qcow2","virtual_size":%d}\n' "$disk_gib" >"$folder/metadata.json"
  echo 'Vagrant.configure("2") { |config| config.vm.synced_folder ".", "/vagrant", type: "rsync" }' >"$folder/Vagrantfile"
  tar -C "$folder" -cf "$box" metadata.json Vagrantfile box.img
  rm -rf --one-file-system "$build/bare" "$folder"
  say "made $box"
  if command -v vagrant >/dev/null; then
    vagrant box add --force --name lab/bookworm --provider libvirt "$box"
    say "next: LAB_BOX=lab/bookworm vagrant up --provider=libvirt"
  fi
}

[ "$(id -u)" = 0 ] || stop "needs root"
mkdir -p "$build"
case "${1:-box}" in
  tree) make_tree "${2:?TAR}" ;;
  image) make_image "${2:?TREE}" "${3:?QCOW2}" ;;
  box) make_box ;;
  *) stop "unknown part '$1'; valid: tree TAR, image TREE QCOW2, box" ;;
esac
