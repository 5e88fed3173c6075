# Goes into a release: enter.sh ROOT DIST USER PROGRAM …, in mount, process, network, IPC and host name namespaces of its own.
# Nothing of the release is changed: what can be written is memory that goes with the namespaces.
set -eu
root=$1 dist=$2 user=$3
shift 3
ip link set lo up
echo localhost >/proc/sys/kernel/hostname
# Some programs skip loopback: an interface with an address, as a host has.
ip link add eth0 type veth peer name eth1
ip address add 192.0.2.1/24 dev eth0
ip link set eth0 addrgenmode none up
ip link set eth1 addrgenmode none up
mount --bind "$dist" "$root/opt/softhca"
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
for folder in tmp run dev; do
    mount -t tmpfs -o mode=1777 "$folder" "$root/$folder"
done
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -m 1777 "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
cd /
exec chroot --userspec="$user:$user" "$root" /usr/bin/env -i HOME=/tmp LANG=C.UTF-8 \
    PATH=/opt/softhca/bin:/usr/bin:/usr/sbin:/bin:/sbin "$@"
