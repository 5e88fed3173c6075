//! The Debian packages whose programs the commands run: finds missing packages, and installs them
//! if the user is root.
//!
//! It never changes an installed package. The principal function is [`require`].

use std::path::Path;
use std::process::{Command, Stdio};

/// A package, and a file that shows that it is installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DebianPackage {
    name: &'static str,
    file: &'static str,
}

const IBVERBS_UTILS: DebianPackage = DebianPackage { name: "ibverbs-utils", file: "/usr/bin/ibv_rc_pingpong" };
const PERFTEST: DebianPackage = DebianPackage { name: "perftest", file: "/usr/bin/ib_write_bw" };
const UCX_UTILS: DebianPackage = DebianPackage { name: "ucx-utils", file: "/usr/bin/ucx_perftest" };

const LIBFABRIC_BIN: DebianPackage = DebianPackage { name: "libfabric-bin", file: "/usr/bin/fi_info" };

/// The packages for `cargo xtask demo`.
pub(crate) const DEMO: &[DebianPackage] = &[IBVERBS_UTILS, PERFTEST];

/// The packages for `cargo xtask bench`.
pub(crate) const BENCH: &[DebianPackage] = &[
    PERFTEST,
    UCX_UTILS,
    DebianPackage { name: "rdmacm-utils", file: "/usr/bin/rstream" },
    DebianPackage { name: "qperf", file: "/usr/bin/qperf" },
    DebianPackage { name: "librdmacm-dev", file: "/usr/include/rdma/rdma_cma.h" },
    DebianPackage { name: "gcc", file: "/usr/bin/gcc" },
];

/// The packages for `cargo xtask bench --peers`.
pub(crate) const PEERS: &[DebianPackage] = &[
    PERFTEST,
    UCX_UTILS,
    DebianPackage { name: "libfabric-bin", file: "/usr/bin/fi_pingpong" },
    IBVERBS_UTILS,
    DebianPackage { name: "libibverbs-dev", file: "/usr/include/infiniband/verbs.h" },
    DebianPackage { name: "gcc", file: "/usr/bin/gcc" },
    DebianPackage { name: "util-linux", file: "/usr/bin/taskset" },
    DebianPackage { name: "strace", file: "/usr/bin/strace" },
    DebianPackage { name: "rdmacm-utils", file: "/usr/bin/rstream" },
    DebianPackage { name: "iperf3", file: "/usr/bin/iperf3" },
];

/// The packages that make other Debian releases.
pub(crate) const DISTROS: &[DebianPackage] = &[
    DebianPackage { name: "debootstrap", file: "/usr/sbin/debootstrap" },
    DebianPackage { name: "iproute2", file: "/usr/sbin/ip" },
    DebianPackage { name: "util-linux", file: "/usr/bin/unshare" },
    DebianPackage { name: "binutils", file: "/usr/bin/readelf" },
    DebianPackage { name: "mmdebstrap", file: "/usr/bin/mmdebstrap" },
];

/// The packages for the integration suite. gcc and the headers compile its own small verbs
/// programs.
pub(crate) const SUITE: &[DebianPackage] = &[
    IBVERBS_UTILS,
    PERFTEST,
    UCX_UTILS,
    LIBFABRIC_BIN,
    DebianPackage { name: "python3-pyverbs", file: "/usr/lib/python3/dist-packages/pyverbs/__init__.py" },
    DebianPackage { name: "libibverbs-dev", file: "/usr/include/infiniband/verbs.h" },
    DebianPackage { name: "librdmacm-dev", file: "/usr/include/rdma/rdma_cma.h" },
    DebianPackage { name: "infiniband-diags", file: "/usr/sbin/ibnetdiscover" },
    DebianPackage { name: "opensm", file: "/usr/sbin/opensm" },
    DebianPackage { name: "ibutils", file: "/usr/bin/ibdmchk" },
    DebianPackage { name: "ibsim-utils", file: "/usr/bin/ibsim" },
    DebianPackage { name: "libumad2sim0", file: "/usr/share/doc/libumad2sim0/copyright" },
    DebianPackage { name: "libibumad-dev", file: "/usr/include/infiniband/umad.h" },
    DebianPackage { name: "rdmacm-utils", file: "/usr/bin/rping" },
    DebianPackage { name: "qperf", file: "/usr/bin/qperf" },
    DebianPackage { name: "fio", file: "/usr/bin/fio" },
    DebianPackage { name: "tgt", file: "/usr/sbin/tgtd" },
    DebianPackage { name: "libiscsi-bin", file: "/usr/bin/iscsi-inq" },
    DebianPackage { name: "libiscsi-dev", file: "/usr/include/iscsi/iscsi.h" },
    DebianPackage { name: "iperf3", file: "/usr/bin/iperf3" },
    DebianPackage { name: "netcat-openbsd", file: "/usr/bin/nc.openbsd" },
    DebianPackage { name: "curl", file: "/usr/bin/curl" },
    DebianPackage { name: "iputils-ping", file: "/usr/bin/ping" },
    DebianPackage { name: "gcc", file: "/usr/bin/gcc" },
    DebianPackage { name: "iproute2", file: "/usr/sbin/ip" },
    DebianPackage { name: "util-linux", file: "/usr/bin/setpriv" },
    DebianPackage { name: "nftables", file: "/usr/sbin/nft" },
    DebianPackage { name: "ethtool", file: "/usr/sbin/ethtool" },
    DebianPackage { name: "valgrind", file: "/usr/bin/valgrind" },
    DebianPackage { name: "tcpdump", file: "/usr/bin/tcpdump" },
    DebianPackage { name: "tshark", file: "/usr/bin/tshark" },
    DebianPackage { name: "cmake", file: "/usr/bin/ctest" },
    DebianPackage { name: "make", file: "/usr/bin/make" },
    DebianPackage { name: "binutils", file: "/usr/bin/objcopy" },
];

/// Makes sure that the packages are installed. Root installs missing packages. For other users, the
/// error says what to type.
pub(crate) fn require(packages: &[DebianPackage]) -> Result<(), String> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        return Err(format!("missing Debian packages; as root type: apt-get install {names}"));
    }
    println!("installing {names}");
    // The second try uses fresh package lists. A new machine has no lists, and old lists name files
    // that no longer exist.
    if install(&missing) || (apt(&["update"]) && install(&missing)) {
        return Ok(());
    }
    Err(format!("apt-get install {names} did not succeed"))
}

fn missing(packages: &[DebianPackage]) -> Vec<&'static str> {
    packages.iter().filter(|package| !Path::new(package.file).exists()).map(|package| package.name).collect()
}

fn install(names: &[&str]) -> bool {
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(names);
    apt(&words)
}

fn apt(words: &[&str]) -> bool {
    // If another installation on this machine holds the lock, wait for it.
    let mut command = Command::new("apt-get");
    command.args(["--quiet", "--quiet", "-o", "DPkg::Lock::Timeout=300"]).args(words);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
