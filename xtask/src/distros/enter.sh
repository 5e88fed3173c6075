# Goes into a release: enter.sh ROOT FOLDER PLACE USER PROGRAM …, in mount, process, network, IPC and host name namespaces of its own.
# The release has FOLDER at PLACE, if FOLDER is not empty. Nothing of the release is changed: what can be written is memory that goes
# with the namespaces. Root may write everywhere, an ordinary user in the usual folders.
set -eu
root=$1 folder=$2 place=$3 user=$4
shift 4
ip link set lo up
echo localhost >/proc/sys/kernel/hostname
# Some programs skip loopback: an interface with an address, as a host has.
ip link add eth0 type veth peer name eth1
ip address add 192.0.2.1/24 dev eth0
ip link set eth0 addrgenmode none up
ip link set eth1 addrgenmode none up
if [ "$user" = 0 ]; then
    cd "$root"
    mount -t tmpfs -o mode=755 layer run
    mkdir -m 755 run/upper run/work
    mount -t overlay -o lowerdir=.,upperdir=run/upper,workdir=run/work layer .
fi
if [ -n "$folder" ]; then
    mount --bind "$folder" "$root$place"
fi
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
for writable in tmp run dev; do
    mount -t tmpfs -o mode=1777 "$writable" "$root/$writable"
done
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -m 1777 "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
cd /
exec chroot --userspec="$user:$user" "$root" /usr/bin/env -i HOME=/tmp LANG=C.UTF-8 \
    PATH="${place:+$place/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@"
