//! A key-value store over RDMA: `kv ADDRESS:PORT` serves; `kv ADDRESS:PORT put KEY VALUE get KEY …` asks.
//!
//! GET is one-sided: the client READs the slots in which a key can be, and the server's processor has no part in it. PUT is a message,
//! and the server is the only one that writes to the table. A READ may meet a slot that is being written, so each slot has a checksum;
//! when it does not match, the client READs again.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use softhca::cm::{Connection, Connector, Listener, Request};
use softhca::{Access, Buffer, Context, Cq, Exposed, Operation, Pd, RemoteRegion, Result, Status};

/// A slot: checksum of the rest (8 bytes), lengths of key and value (1 byte each), key, value, zeros. An empty one is all zeros.
const SLOT: usize = 128;
const HEADER: usize = 10;
/// A key lives in one of so many slots, from that of its hash on.
const PROBES: usize = 8;
const SLOTS: usize = 4096;
/// More often than any slot can change during the READs of one GET, unless the table is damaged.
const TRIES: usize = 10_000;

const STORED: &[u8] = b"stored";

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "kv ADDRESS:PORT [put KEY VALUE | get KEY]…";
    let address: SocketAddr = words.first().ok_or(usage)?.parse()?;
    let device = softhca::open()?;
    if words.len() == 1 {
        return Ok(serve(&device, Listener::bind(&device, address)?)?);
    }
    let mut client = Client::connect(&device, address)?;
    let mut rest = words.get(1..).unwrap_or_default();
    while !rest.is_empty() {
        rest = match rest {
            [put, key, value, rest @ ..] if put == "put" => {
                client.put(key.as_bytes(), value.as_bytes())?;
                rest
            }
            [get, key, rest @ ..] if get == "get" => {
                let value = client.get(key.as_bytes())?;
                println!(
                    "{key} = {}",
                    value.map_or("nothing".into(), |value| String::from_utf8_lossy(&value).into_owned())
                );
                rest
            }
            _ => return Err(usage.into()),
        };
    }
    Ok(())
}

/// The table, which clients read while the server writes.
struct Table(Exposed);

impl Table {
    fn new(pd: &Pd) -> Result<Self> {
        // The last key has as many slots as the first one.
        Ok(Self(pd.expose((SLOTS + PROBES - 1) * SLOT, Access::READ)?))
    }

    /// Stores a value; false when all slots for its key have other keys.
    fn put(&self, key: &[u8], value: &[u8]) -> bool {
        let start = home(key) * SLOT;
        let slots = self.0.to_vec(start..start + PROBES * SLOT);
        let free = slots.chunks(SLOT).position(|slot| match content(slot) {
            Some((there, _)) => there == key,
            None => true,
        });
        let (Some(index), Some(slot)) = (free, slot_of(key, value)) else { return false };
        self.0.write(start + index * SLOT, &slot);
        true
    }
}

/// FNV-1a, which is enough to find out what was torn.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The first slot in which a key can be.
fn home(key: &[u8]) -> usize {
    (hash(key) % SLOTS as u64) as usize
}

fn slot_of(key: &[u8], value: &[u8]) -> Option<[u8; SLOT]> {
    let mut slot = [0; SLOT];
    let (middle, end) = (HEADER + key.len(), HEADER + key.len() + value.len());
    (slot[8], slot[9]) = (u8::try_from(key.len()).ok().filter(|len| *len > 0)?, u8::try_from(value.len()).ok()?);
    slot.get_mut(HEADER..middle)?.copy_from_slice(key);
    slot.get_mut(middle..end)?.copy_from_slice(value);
    let sum = hash(&slot[8..]);
    slot[..8].copy_from_slice(&sum.to_le_bytes());
    Some(slot)
}

/// Key and value of a slot; `None` for an empty one.
fn content(slot: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, value) = (usize::from(slot[8]), usize::from(slot[9]));
    let rest = slot.get(HEADER..HEADER + key + value).filter(|_| key > 0)?;
    Some(rest.split_at(key))
}

/// Nobody was writing it while it was read.
fn is_whole(slot: &[u8]) -> bool {
    slot[..8] == hash(&slot[8..]).to_le_bytes() || slot.iter().all(|byte| *byte == 0)
}

/// Serves until the device is lost. Each client has a thread of its own.
pub(crate) fn serve(device: &Context, listener: Listener) -> Result<()> {
    let pd = device.pd()?;
    let table = Arc::new(Mutex::new(Table::new(&pd)?));
    loop {
        let request = listener.accept()?;
        let (device, pd, table) = (device.clone(), pd.clone(), Arc::clone(&table));
        std::thread::spawn(move || {
            if let Err(error) = attend(&device, &pd, request, &table) {
                eprintln!("a client is lost: {error}");
            }
        });
    }
}

/// One client, until it disconnects.
fn attend(device: &Context, pd: &Pd, request: Request, table: &Mutex<Table>) -> Result<()> {
    let cq = device.cq(16)?;
    let incoming = request.prepare(pd.reliable(&cq))?;
    for buffer in pd.buffer(4 * SLOT)?.pieces(SLOT) {
        incoming.receive(0, buffer)?; // Before the client may send.
    }
    let token = table.lock().expect("no writer panics").0.token();
    let connection = incoming.accept(&token.to_bytes())?;
    loop {
        let completion = cq.wait()?;
        match (completion.operation(), completion.status()) {
            (Operation::Receive, Status::Success) => {}
            (Operation::Receive, _) => return Ok(()), // The client has disconnected.
            _ => {
                completion.ok()?;
                continue;
            }
        }
        // The message is a slot, which the client has made.
        let stored = match completion.data() {
            slot if slot.len() == SLOT && is_whole(slot) => {
                let table = table.lock().expect("no writer panics");
                content(slot).is_some_and(|(key, value)| table.put(key, value))
            }
            _ => false,
        };
        connection.receive(0, completion.into_buffer())?;
        connection.send_inline(1, if stored { STORED } else { b"refused" }, None)?;
    }
}

pub(crate) struct Client {
    connection: Connection,
    cq: Cq,
    pd: Pd,
    table: RemoteRegion,
    /// Where READs go.
    slots: Option<Buffer>,
}

impl Client {
    pub(crate) fn connect(device: &Context, address: SocketAddr) -> io::Result<Self> {
        let (pd, cq) = (device.pd()?, device.cq(16)?);
        let connection = Connector::new(device).resolve(address)?.prepare(pd.reliable(&cq))?.connect(b"")?;
        let token =
            connection.private_data().first_chunk().ok_or_else(|| io::Error::other("the server sent no token"))?;
        let (table, slots) = (RemoteRegion::from_bytes(token), Some(pd.buffer(PROBES * SLOT)?));
        Ok(Self { connection, cq, pd, table, slots })
    }

    /// Stores a value. When it returns, everybody's GET finds it.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let slot = slot_of(key, value).ok_or_else(|| io::Error::other("key and value do not fit into a slot"))?;
        let mut message = self.pd.buffer(SLOT)?;
        message.copy_from_slice(&slot);
        self.connection.receive(1, self.pd.buffer(SLOT)?)?;
        self.connection.send(2, message)?;
        let mut stored = false;
        for _ in 0..2 {
            let completion = self.cq.wait()?.ok()?;
            stored |= completion.operation() == Operation::Receive && completion.data() == STORED;
        }
        if stored { Ok(()) } else { Err(io::Error::other("the server has no room for this key")) }
    }

    /// The value of a key, read from the server's memory.
    pub(crate) fn get(&mut self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let start = home(key) * SLOT;
        let there = self.table.part(start..start + PROBES * SLOT)?;
        for _ in 0..TRIES {
            let slots = self.slots.take().map_or_else(|| self.pd.buffer(PROBES * SLOT), Ok)?;
            self.connection.read(3, slots, &there)?;
            let slots = self.slots.insert(self.cq.wait()?.ok()?.into_buffer());
            if slots.chunks(SLOT).all(is_whole) {
                let found = slots.chunks(SLOT).filter_map(content).find(|(there, _)| *there == key);
                return Ok(found.map(|(_, value)| value.to_vec()));
            }
        }
        Err(io::Error::other("the table is damaged: its checksums do not match"))
    }
}
