//! A hostile program that may send management datagrams. As a victim, it is the program of another
//! user that sends some as well.
//!
//! `tests/mad_users.rs` starts it as `mad_flooder FLOOD SECONDS`, with `SOFTHCA_DIR` naming the
//! agent's run directory. It repeats one action as often as possible, and prints how often it has
//! done so. As `mad_flooder victim SECONDS`, it sends requests one after the other, and fails if
//! one is not answered. As `mad_flooder serves SECONDS`, it serves subnet administration and does
//! not answer. The agent may refuse what a flood asks.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::Record;
use abi::umad::{FileRequest, MESSAGE_MAX, NODE, PIECE, RegisterAgent2, UserMad};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shm::Socket;
use umad::File;
use wire::mad::{
    CLASS_DEVICE, CLASS_SA, CLASS_SUBN_DIRECTED, GSI_QKEY, Header, MAD_LEN, METHOD_GET, METHOD_GET_TABLE, Mad, RESPONSE,
};
use wire::rmpp::{FLAG_ACTIVE, FLAG_FIRST, OFFSET, TYPE_DATA, VERSION};
use wire::smp::{NodeInfo, PERMISSIVE_LID, Smp};

/// How long the victim waits for an answer.
const ANSWER: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// The LID of the port, and one that nobody has.
const OWN: u16 = 1;
const NOBODY: u16 = 0x700;

type Flood = fn(&mut Flooder) -> io::Result<()>;

const FLOODS: [(&str, Flood); 6] = [
    ("requests", Flooder::request),
    ("forgeries", Flooder::forge),
    ("halves", Flooder::send_half),
    ("registrations", Flooder::register),
    ("pieces", Flooder::write_half),
    ("nonsense", Flooder::write_nonsense),
];

/// A program with a file from which it never reads.
struct Flooder {
    run_dir: PathBuf,
    file: File,
    /// The registration that serves its own requests.
    server: u32,
    count: u64,
    files: Vec<File>,
    connections: Vec<Socket>,
}

fn main() -> io::Result<()> {
    let run_dir = engine::rundir::default();
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    match &*what {
        "victim" => return victim(&run_dir, end),
        "serves" => return serve(&run_dir, end),
        _ => {}
    }
    let (_, flood) = FLOODS.iter().find(|(name, _)| *name == what).ok_or(io::ErrorKind::InvalidInput)?;
    let mut flooder = Flooder::new(run_dir)?;
    println!("begun");
    let mut refused = 0_u64;
    while Instant::now() < end {
        flooder.count += 1;
        refused += u64::from(flood(&mut flooder).is_err());
    }
    println!("{what}: {} times, {refused} refused", flooder.count);
    Ok(())
}

/// The version of a class.
fn version(class: u8) -> u8 {
    if class == CLASS_SA { wire::sa::CLASS_VERSION } else { 1 }
}

/// Registers for a class, to serve `methods`.
fn registered(file: &File, mgmt_class: u8, methods: u64) -> io::Result<u32> {
    let is_subnet = mgmt_class == CLASS_SUBN_DIRECTED;
    file.register(&RegisterAgent2 {
        qpn: u32::from(!is_subnet),
        mgmt_class,
        mgmt_class_version: version(mgmt_class),
        method_mask: [methods, 0],
        rmpp_version: u8::from(!is_subnet),
        ..RegisterAgent2::default()
    })
}

/// Serves subnet administration, so that no subnet manager can.
fn serve(run_dir: &Path, end: Instant) -> io::Result<()> {
    let file = File::open(run_dir, 0)?;
    registered(&file, CLASS_SA, 1 << METHOD_GET_TABLE)?;
    println!("begun");
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    Ok(())
}

/// Asks the own port for NodeInfo, again and again.
fn victim(run_dir: &Path, end: Instant) -> io::Result<()> {
    let file = File::open(run_dir, 0)?;
    let id = registered(&file, CLASS_SUBN_DIRECTED, 0)?;
    let mut times = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        let transaction = times.len() as u64;
        let (dr_slid, dr_dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
        let get = Smp {
            base_version: 1,
            class: CLASS_SUBN_DIRECTED,
            class_version: 1,
            method: METHOD_GET,
            attribute: NodeInfo::ATTRIBUTE,
            transaction,
            dr_slid,
            dr_dlid,
            ..Smp::default()
        };
        let header = UserMad { id, timeout_ms: 50_000, lid: PERMISSIVE_LID.to_be(), ..UserMad::default() };
        file.write(&header, &get.to_mad())?;
        let (header, mad) = loop {
            if let Some(answer) = file.next()? {
                break answer;
            }
            if poll(&mut [PollFd::new(&file.as_fd(), PollFlags::IN)], Some(&ANSWER))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
        };
        let answer = Header::of(&mad);
        let is_it = answer.transaction as u32 == transaction as u32 && answer.method == METHOD_GET | RESPONSE;
        if header.status != 0 || !is_it {
            return Err(io::Error::other(format!("{header:?} {answer:?}")));
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let part = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{} answers: p50 {:?}, p99 {:?}, max {:?}", times.len(), part(50), part(99), part(100));
    Ok(())
}

impl Flooder {
    fn new(run_dir: PathBuf) -> io::Result<Self> {
        let file = File::open(&run_dir, 0)?;
        // Subnet administration stays free for a subnet manager.
        let server = registered(&file, CLASS_DEVICE, 1 << METHOD_GET_TABLE)?;
        Ok(Self { run_dir, file, server, count: 0, files: Vec::new(), connections: Vec::new() })
    }

    fn mad(&self, method: u8) -> Mad {
        let mut mad = [0; MAD_LEN];
        let (class_version, transaction) = (version(CLASS_DEVICE), self.count);
        Header { base_version: 1, class: CLASS_DEVICE, class_version, method, transaction, ..Header::default() }
            .emit_to(&mut mad);
        mad
    }

    fn to(&self, lid: u16, timeout_ms: u32) -> UserMad {
        let (qpn, qkey, lid) = (1_u32.to_be(), GSI_QKEY.to_be(), lid.to_be());
        UserMad { id: self.server, timeout_ms, retries: 1000, qpn, qkey, lid, ..UserMad::default() }
    }

    /// A request that nobody answers.
    fn request(&mut self) -> io::Result<()> {
        self.file.write(&self.to(NOBODY, 1), &self.mad(METHOD_GET))
    }

    /// An answer with the transaction id of another client, whose numbers it guesses.
    fn forge(&mut self) -> io::Result<()> {
        let mut mad = self.mad(METHOD_GET | RESPONSE);
        let transaction = ((self.count % 64) << 32) | (self.count / 64 % 1000);
        mad[8..16].copy_from_slice(&transaction.to_be_bytes());
        self.file.write(&self.to(OWN, 0), &mad)
    }

    /// A segment of a message whose end never comes. The own registration receives it.
    fn send_half(&mut self) -> io::Result<()> {
        let raw = self.files.is_empty();
        if raw {
            let file = File::open(&self.run_dir, 0)?;
            file.register(&RegisterAgent2 { qpn: 1, ..RegisterAgent2::default() })?;
            self.files.push(file);
        }
        let mut mad = self.mad(METHOD_GET_TABLE);
        mad[OFFSET..OFFSET + 3].copy_from_slice(&[VERSION, TYPE_DATA, FLAG_ACTIVE | FLAG_FIRST]);
        mad[OFFSET + 7] = 1;
        let header = UserMad { id: 0, ..self.to(OWN, 0) };
        self.files.first().map_or(Ok(()), |file| file.write(&header, &mad))
    }

    fn register(&mut self) -> io::Result<()> {
        if self.count % 33 == 1 {
            self.files.push(File::open(&self.run_dir, 0)?);
        }
        let newest = self.files.last().unwrap_or(&self.file);
        registered(newest, CLASS_DEVICE, 0).map(drop)
    }

    /// The beginning of a long message.
    fn write_half(&mut self) -> io::Result<()> {
        let socket = Socket::connect(&self.run_dir.join(NODE))?;
        let request = FileRequest::write(self.file.key(), MESSAGE_MAX);
        socket.send(&[request.bytes(), &[7; PIECE / 2]].concat(), &[])?;
        if self.connections.len() < 100 {
            self.connections.push(socket);
        }
        Ok(())
    }

    /// Messages without a call, which fail, and whose failures it does not read.
    fn write_nonsense(&mut self) -> io::Result<()> {
        let socket = self.file.as_fd().try_clone_to_owned()?;
        let header = UserMad { id: 31, ..UserMad::default() };
        Socket::from(socket).send(&[header.bytes(), &self.mad(METHOD_GET)].concat(), &[])
    }
}
