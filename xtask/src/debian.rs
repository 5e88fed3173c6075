//! The Debian packages whose programs the commands run: finds missing packages, and installs them
//! if the user is root.
//!
//! It never changes an installed package. The principal function is [`require`].

use std::path::Path;
use std::process::{Command, Stdio};

/// A package, and a file that shows that it is installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Package {
    name: &'static str,
    file: &'static str,
}

const IBVERBS_UTILS: Package = Package { name: "ibverbs-utils", file: "/usr/bin/ibv_rc_pingpong" };
const PERFTEST: Package = Package { name: "perftest", file: "/usr/bin/ib_write_bw" };
const UCX_UTILS: Package = Package { name: "ucx-utils", file: "/usr/bin/ucx_perftest" };

const LIBFABRIC_BIN: Package = Package { name: "libfabric-bin", file: "/usr/bin/fi_info" };

/// The packages for `cargo xtask demo`.
pub(crate) const DEMO: &[Package] = &[IBVERBS_UTILS, PERFTEST];

/// The packages for `cargo xtask bench`.
pub(crate) const BENCH: &[Package] = &[
    PERFTEST,
    UCX_UTILS,
    Package { name: "rdmacm-utils", file: "/usr/bin/rstream" },
    Package { name: "qperf", file: "/usr/bin/qperf" },
    Package { name: "librdmacm-dev", file: "/usr/include/rdma/rdma_cma.h" },
    Package { name: "gcc", file: "/usr/bin/gcc" },
];

/// The packages for `cargo xtask bench --peers`.
pub(crate) const PEERS: &[Package] = &[
    PERFTEST,
    UCX_UTILS,
    Package { name: "libfabric-bin", file: "/usr/bin/fi_pingpong" },
    IBVERBS_UTILS,
    Package { name: "libibverbs-dev", file: "/usr/include/infiniband/verbs.h" },
    Package { name: "gcc", file: "/usr/bin/gcc" },
    Package { name: "util-linux", file: "/usr/bin/taskset" },
    Package { name: "strace", file: "/usr/bin/strace" },
    Package { name: "rdmacm-utils", file: "/usr/bin/rstream" },
    Package { name: "iperf3", file: "/usr/bin/iperf3" },
];

/// The packages that make other Debian releases.
pub(crate) const DISTROS: &[Package] = &[
    Package { name: "debootstrap", file: "/usr/sbin/debootstrap" },
    Package { name: "iproute2", file: "/usr/sbin/ip" },
    Package { name: "util-linux", file: "/usr/bin/unshare" },
    Package { name: "binutils", file: "/usr/bin/readelf" },
    Package { name: "mmdebstrap", file: "/usr/bin/mmdebstrap" },
];

/// The packages for the integration suite. gcc and the headers compile its own small verbs
/// programs.
pub(crate) const SUITE: &[Package] = &[
    IBVERBS_UTILS,
    PERFTEST,
    UCX_UTILS,
    LIBFABRIC_BIN,
    Package { name: "python3-pyverbs", file: "/usr/lib/python3/dist-packages/pyverbs/__init__.py" },
    Package { name: "libibverbs-dev", file: "/usr/include/infiniband/verbs.h" },
    Package { name: "librdmacm-dev", file: "/usr/include/rdma/rdma_cma.h" },
    Package { name: "libibumad-dev", file: "/usr/include/infiniband/umad.h" },
    Package { name: "rdmacm-utils", file: "/usr/bin/rping" },
    Package { name: "qperf", file: "/usr/bin/qperf" },
    Package { name: "fio", file: "/usr/bin/fio" },
    Package { name: "tgt", file: "/usr/sbin/tgtd" },
    Package { name: "libiscsi-bin", file: "/usr/bin/iscsi-inq" },
    Package { name: "libiscsi-dev", file: "/usr/include/iscsi/iscsi.h" },
    Package { name: "iperf3", file: "/usr/bin/iperf3" },
    Package { name: "netcat-openbsd", file: "/usr/bin/nc.openbsd" },
    Package { name: "curl", file: "/usr/bin/curl" },
    Package { name: "gcc", file: "/usr/bin/gcc" },
    Package { name: "iproute2", file: "/usr/sbin/ip" },
    Package { name: "util-linux", file: "/usr/bin/setpriv" },
    Package { name: "nftables", file: "/usr/sbin/nft" },
    Package { name: "ethtool", file: "/usr/sbin/ethtool" },
    Package { name: "valgrind", file: "/usr/bin/valgrind" },
    Package { name: "tcpdump", file: "/usr/bin/tcpdump" },
    Package { name: "tshark", file: "/usr/bin/tshark" },
    Package { name: "cmake", file: "/usr/bin/ctest" },
    Package { name: "make", file: "/usr/bin/make" },
    Package { name: "binutils", file: "/usr/bin/objcopy" },
];

/// Makes sure that the packages are installed. Root installs missing packages. For other users, the
/// error says what to type.
pub(crate) fn require(packages: &[Package]) -> Result<(), String> {
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

fn missing(packages: &[Package]) -> Vec<&'static str> {
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
