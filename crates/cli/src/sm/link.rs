//! The port of `softhca sm`: its management datagrams. Principal type: [`MadPort`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::reason::clean;
use abi::umad::{RegisterAgent2, UserMad};
use shm::Socket;
use sm::Address;
use sm::sa::Peer;
use sm::service::Outgoing;
use umad::{File, Served};
use wire::mad::{self, CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, GSI_QKEY, Header, Mad, RESPONSE};
use wire::smp::PERMISSIVE_LID;

use crate::failure::Failure;
use crate::umad_number::number;

/// The agent forgets a request before the manager sends it again.
const ANSWER_MS: u32 = 150;
/// Get, Set, Send, Trap, Report and TrapRepress.
const SMP_METHODS: u64 = 0b1110_1110;
/// Get, Set, Report, GetTable, GetTraceTable, GetMulti and Delete.
const SA_METHODS: u64 = 0b0100_0110 | 0xf << 0x12;
/// The P_Keys of the port are read again after this time.
const FRESH: Duration = Duration::from_secs(1);
/// The agent sets the upper half of the transaction ids of requests. The manager's are below.
const OWN: u64 = 0xffff_ffff;

/// The longest name of a process that is printed.
const COMMAND_MAX: usize = 64;

/// A datagram that has arrived.
pub(super) enum Incoming {
    /// For QP 0.
    Management(Address, Box<Mad>),
    /// For QP 1.
    Administration(Peer, Box<Mad>),
}

/// The P_Keys of the port that were read, by index; `None` for an index that has none.
struct Keys {
    since: Instant,
    known: HashMap<u16, Option<u16>>,
}

/// A port with its registrations.
pub(super) struct MadPort {
    file: File,
    lid_routed: u32,
    directed: u32,
    administration: u32,
    folder: PathBuf,
    keys: RefCell<Keys>,
    /// The port says that it has a manager, while this exists.
    _manager: Socket,
}

impl MadPort {
    pub(super) fn open(run_dir: &Path, port: u8) -> Result<Self, Failure> {
        let (umad, device) =
            number(run_dir, None, port).map_err(|error| format!("port {port}: {error}; see `softhca devices`"))?;
        let name = format!("{device}/{port}");
        let refused = |error: io::Error| why(&name, &error);
        let file = File::open(run_dir, umad).map_err(refused)?;
        let register = |qpn, mgmt_class, mgmt_class_version, methods| {
            let method_mask = [methods, 0];
            let wanted = RegisterAgent2 { qpn, mgmt_class, mgmt_class_version, method_mask, ..Default::default() };
            file.register(&wanted).map_err(|error| not_registered(&name, &error))
        };
        let lid_routed = register(0, CLASS_SUBN_LID, 1, SMP_METHODS)?;
        let directed = register(0, CLASS_SUBN_DIRECTED, 1, SMP_METHODS)?;
        let administration = register(1, CLASS_SA, wire::sa::CLASS_VERSION, SA_METHODS)?;
        Ok(Self {
            lid_routed,
            directed,
            administration,
            folder: engine::rundir::sysfs(run_dir).join(format!("class/infiniband/{device}/ports/{port}")),
            keys: RefCell::new(Keys { since: Instant::now(), known: HashMap::new() }),
            file,
            // Last: when the port says that it has a manager, the others ask it what it is.
            _manager: umad::hold_manager(run_dir, umad).map_err(refused)?,
        })
    }

    /// The GUID of the port.
    pub(super) fn guid(&self) -> Option<u64> {
        let gid = fs::read_to_string(self.folder.join("gids/0")).ok()?;
        u64::from_str_radix(gid.trim().replace(':', "").get(16..)?, 16).ok()
    }

    fn pkey(&self, index: u16) -> Option<u16> {
        let mut keys = self.keys.borrow_mut();
        if keys.since.elapsed() > FRESH {
            *keys = Keys { since: Instant::now(), known: HashMap::new() };
        }
        *keys.known.entry(index).or_insert_with(|| {
            let key = fs::read_to_string(self.folder.join(format!("pkeys/{index}"))).ok()?;
            u16::from_str_radix(key.trim().trim_start_matches("0x"), 16).ok()
        })
    }

    /// The index of a P_Key; of the same partition if the membership differs.
    fn pkey_index(&self, pkey: u16) -> u16 {
        let same = |index: &u16| self.pkey(*index).is_some_and(|key| key & 0x7fff == pkey & 0x7fff);
        if same(&0) { 0 } else { (1..128).find(same).unwrap_or(0) }
    }

    /// Sends a datagram.
    pub(super) fn send(&self, outgoing: &Outgoing) -> io::Result<()> {
        let (mut header, mad) = match outgoing {
            Outgoing::Management(Address::Directed, mad) => {
                (UserMad { id: self.directed, lid: PERMISSIVE_LID.to_be(), ..UserMad::default() }, mad)
            }
            Outgoing::Management(Address::Lid { lid, sl, qp }, mad) => {
                let (lid, qpn) = (lid.to_be(), qp.to_be());
                (UserMad { id: self.lid_routed, lid, sl: *sl, qpn, ..UserMad::default() }, mad)
            }
            Outgoing::Administration(peer, mad) => {
                let pkey_index = self.pkey_index(peer.pkey);
                let (lid, qpn, qkey) = (peer.lid.to_be(), peer.qpn.to_be(), GSI_QKEY.to_be());
                let id = self.administration;
                (UserMad { id, lid, qpn, qkey, sl: peer.sl, pkey_index, ..UserMad::default() }, mad)
            }
        };
        let method = Header::of(mad).method;
        if method & RESPONSE == 0 && method != mad::METHOD_TRAP_REPRESS {
            header.timeout_ms = ANSWER_MS;
        }
        self.file.write(&header, mad)
    }

    /// The next datagram that has arrived.
    pub(super) fn next(&self) -> io::Result<Option<Incoming>> {
        while let Some((from, mut mad)) = self.file.next()? {
            if from.status != 0 {
                continue;
            }
            let header = Header::of(&mad);
            if header.method & RESPONSE != 0 {
                mad[8..16].copy_from_slice(&(header.transaction & OWN).to_be_bytes());
            }
            let (lid, sl, qpn) = (u16::from_be(from.lid), from.sl, u32::from_be(from.qpn));
            return Ok(Some(match header.class {
                CLASS_SUBN_DIRECTED => Incoming::Management(Address::Directed, mad),
                CLASS_SUBN_LID => Incoming::Management(Address::Lid { lid, sl, qp: qpn }, mad),
                _ => {
                    let pkey = self.pkey(from.pkey_index).unwrap_or(wire::pkey::DEFAULT);
                    let gid = (from.grh_present != 0).then_some(from.gid);
                    Incoming::Administration(Peer { lid, qpn, pkey, sl, gid }, mad)
                }
            }));
        }
        Ok(None)
    }
}

/// Readable when a datagram has arrived.
impl AsFd for MadPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn not_registered(name: &str, error: &io::Error) -> Failure {
    let Some(served) = error.get_ref().and_then(|inner| inner.downcast_ref::<Served>()) else {
        return why(name, error);
    };
    let Served { pid, uid, class, .. } = served;
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = clean(command.trim_end(), COMMAND_MAX);
    let what = if *class == CLASS_SA { "subnet administration" } else { "subnet management" };
    format!(
        "process {pid} ({command}) of user {uid} already serves {what} (class {class:#04x}) at {name}; \
         end it, or run this manager at another port"
    )
    .into()
}

fn why(name: &str, error: &io::Error) -> Failure {
    let is = |errno: Errno| error.raw_os_error() == io::Error::from(errno).raw_os_error();
    if is(Errno::EACCES) || is(Errno::EPERM) {
        format!("no right to the management datagrams of {name}; let the agent's setting mad_users name this user")
            .into()
    } else if is(Errno::EAGAIN) {
        format!("another subnet manager runs at {name}; end it, or run this one on another node").into()
    } else if is(Errno::ENODEV) || is(Errno::EPROTONOSUPPORT) {
        format!("{name} is a port of Ethernet, which has no subnet manager; see softhca agent --topology").into()
    } else {
        format!("the management datagrams of {name}: {}", shm::denied::told(error)).into()
    }
}
