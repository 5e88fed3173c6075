//! The connections of connected mode: those that this side has made, on which it sends, and those
//! that peers have made, on which it receives. Threads wait for the connection manager. The
//! principal type is [`Connected`].

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use ipoib::LinkAddress;
use ipoib::header::LEN as HEADER;
use rustix::io::Errno;
use softhca::cm::{Connector, Listener, Request, Service as Place};
use softhca::{Buffer, Connected as AnyService, Context, Cq, Gid, Pd, Result, Srq};

use super::connection::{Build, Line, Service};
use super::link::SENDS;

/// The longest packet of a connection, as Linux has it.
pub(crate) const MTU: usize = 65520;
/// The receives of all connections.
pub(crate) const RECEIVES: u32 = 128;
/// The service ids of interfaces, as Linux has them: this and the QPN.
const SERVICE: u64 = 0x1000_0000_0000_0000;
/// Connections that peers may have made, and those that are being made.
const INCOMING: usize = 256;
const PENDING: usize = 32;
/// How often the listener looks whether to stop.
const GLANCE: Duration = Duration::from_millis(500);

/// What a thread has done.
enum Made {
    Outgoing(LinkAddress, Result<Box<dyn Line>>),
    Incoming(Box<dyn Line>),
}

/// Connections of one interface.
pub(crate) struct Connected {
    maker: Maker,
    srq: Srq,
    outgoing: HashMap<LinkAddress, Outgoing>,
    /// Connections that end when their last sends have completed.
    ending: Vec<Outgoing>,
    incoming: Vec<Box<dyn Line>>,
    made: Receiver<Made>,
    woken: UnixStream,
    stop: Arc<AtomicBool>,
}

struct Outgoing {
    connection: Box<dyn Line>,
    sends: u32,
}

/// What a thread needs to make a connection.
#[derive(Clone)]
struct Maker {
    context: Context,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    service: Service,
    own: Place,
    private_data: [u8; 8],
    to: Sender<Made>,
    wake: Arc<UnixStream>,
    pending: Arc<AtomicUsize>,
}

impl Connected {
    /// Posts the receives, and listens for peers at the port of a queue pair.
    pub(crate) fn new(
        context: &Context,
        (pd, cq): (&Pd, &Cq),
        service: Service,
        (gid, pkey, qpn): (Gid, u16, u32),
    ) -> Result<Self> {
        let srq = pd.srq(RECEIVES)?;
        let receives = pd.buffer((HEADER + MTU) * RECEIVES as usize)?.pieces(HEADER + MTU);
        receives.into_iter().try_for_each(|buffer| srq.receive(0, buffer))?;
        let (woken, wake) = wakers()?;
        let (to, made) = channel();
        let mut private_data = [0; 8];
        private_data[..4].copy_from_slice(&qpn.to_be_bytes());
        private_data[4..].copy_from_slice(&((HEADER + MTU) as u32).to_be_bytes());
        let own = Place { gid, pkey, id: SERVICE | u64::from(qpn) };
        let maker = Maker {
            context: context.clone(),
            pd: pd.clone(),
            cq: cq.clone(),
            srq: srq.clone(),
            service,
            own,
            private_data,
            to,
            wake: Arc::new(wake),
            pending: Arc::new(AtomicUsize::new(0)),
        };
        let stop = Arc::new(AtomicBool::new(false));
        match service {
            Service::Rc => maker.begin_to_listen(Pd::reliable, &stop)?,
            Service::Uc => maker.begin_to_listen(Pd::unreliable, &stop)?,
        }
        let (outgoing, ending, incoming) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(Self { maker, srq, outgoing, ending, incoming, made, woken, stop })
    }

    /// Begins to connect. The result comes with [`Connected::next`].
    pub(crate) fn connect(&self, link: LinkAddress) {
        let maker = self.maker.clone();
        let busy = maker.pending.fetch_add(1, Ordering::Relaxed) >= PENDING;
        let connect = move || {
            let made = if busy { Err(Errno::AGAIN.into()) } else { maker.connect(link) };
            maker.tell(Made::Outgoing(link, made));
            maker.pending.fetch_sub(1, Ordering::Relaxed);
        };
        if busy {
            connect();
        } else {
            thread::spawn(connect);
        }
    }

    /// The next connection of this side that was made, with the longest packet that its peer takes,
    /// or that failed. Keeps those of peers.
    pub(crate) fn next(&mut self) -> Option<(LinkAddress, Option<usize>)> {
        let mut bytes = [0; 64];
        while self.woken.read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        loop {
            match self.made.try_recv().ok()? {
                Made::Incoming(connection) => {
                    self.incoming.retain(|one| !one.is_closed());
                    if self.incoming.len() < INCOMING {
                        self.incoming.push(connection);
                    }
                }
                Made::Outgoing(link, Err(_)) => return Some((link, None)),
                Made::Outgoing(link, Ok(connection)) => {
                    let mtu = longest(connection.private_data());
                    if mtu.is_some() {
                        self.outgoing.insert(link, Outgoing { connection, sends: 0 });
                    }
                    return Some((link, mtu));
                }
            }
        }
    }

    /// Sends a payload. Gives the buffer back if it cannot be sent.
    pub(crate) fn send(
        &mut self,
        id: u64,
        buffer: Buffer,
        bytes: usize,
        link: &LinkAddress,
    ) -> Result<(), Vec<Buffer>> {
        let Some(to) = self.outgoing.get_mut(link) else { return Err(vec![buffer]) };
        to.connection.send(id, buffer.part(..bytes)).map_err(|rejected| rejected.buffers)?;
        to.sends += 1;
        Ok(())
    }

    /// A send on this queue pair has completed. Returns the neighbour, if its connection is broken.
    pub(crate) fn sent(&mut self, qpn: u32, failed: bool) -> Option<LinkAddress> {
        let is = |one: &Outgoing| one.connection.qpn() == qpn;
        if let Some(one) = self.ending.iter_mut().find(|one| is(one)) {
            one.sends -= 1;
            self.ending.retain(|one| one.sends > 0);
            return None;
        }
        let (link, one) = self.outgoing.iter_mut().find(|(_, one)| is(one))?;
        one.sends -= 1;
        let link = *link;
        failed.then(|| {
            self.disconnect(&link);
            link
        })
    }

    /// Posts a receive again.
    pub(crate) fn receive(&self, buffer: Buffer) -> Result<()> {
        Ok(self.srq.receive(0, buffer)?)
    }

    /// Ends the connection to a neighbour. Its sends give their buffers back first.
    pub(crate) fn disconnect(&mut self, link: &LinkAddress) {
        if let Some(one) = self.outgoing.remove(link) {
            // Fails only when the agent is gone.
            let _ = one.connection.disconnect();
            if one.sends > 0 {
                self.ending.push(one);
            }
        }
    }

    /// The connections that have ended at the other side.
    pub(crate) fn closed(&mut self) -> Vec<LinkAddress> {
        self.incoming.retain(|one| !one.is_closed());
        let closed = self.outgoing.iter().filter(|(_, one)| one.connection.is_closed()).map(|(link, _)| *link);
        let closed: Vec<LinkAddress> = closed.collect();
        closed.iter().for_each(|link| self.disconnect(link));
        closed
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Readable when [`Connected::next`] may have something.
impl AsFd for Connected {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl Maker {
    fn connect(&self, link: LinkAddress) -> Result<Box<dyn Line>> {
        match self.service {
            Service::Rc => self.connect_with(Pd::reliable, link),
            Service::Uc => self.connect_with(Pd::unreliable, link),
        }
    }

    fn connect_with<S: AnyService + 'static>(&self, build: Build<S>, link: LinkAddress) -> Result<Box<dyn Line>> {
        let (gid, pkey) = (Gid(link.gid), self.own.pkey);
        let from = Place { id: 0, ..self.own };
        let to = Place { gid, pkey, id: SERVICE | u64::from(link.qpn) };
        let route = Connector::new(&self.context).resolve_service(&from, &to)?;
        let builder = build(&self.pd, &self.cq).srq(&self.srq).sends(SENDS).parts(1).inline(0);
        Ok(Box::new(route.prepare(builder)?.connect(&self.private_data)?))
    }

    fn accept<S: AnyService + 'static>(&self, build: Build<S>, request: Request<S>) -> Result<Box<dyn Line>> {
        let builder = build(&self.pd, &self.cq).srq(&self.srq).sends(1).parts(1).inline(0);
        Ok(Box::new(request.prepare(builder)?.accept(&self.private_data)?))
    }

    fn begin_to_listen<S: AnyService + 'static>(&self, build: Build<S>, stop: &Arc<AtomicBool>) -> Result<()> {
        let listener = Listener::builder(&self.context).bind_service(&self.own)?;
        let (accepting, stopping) = (self.clone(), Arc::clone(stop));
        thread::spawn(move || accepting.listen(build, &listener, &stopping));
        Ok(())
    }

    /// Accepts peers, each in a thread of its own: a peer may be slow to confirm.
    fn listen<S: AnyService + 'static>(&self, build: Build<S>, listener: &Listener<S>, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let request = match listener.accept_for(GLANCE) {
                Ok(Some(request)) => request,
                Ok(None) => continue,
                Err(_) => return,
            };
            // Dropping a request rejects it.
            if self.pending.fetch_add(1, Ordering::Relaxed) >= PENDING || longest(request.private_data()).is_none() {
                self.pending.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let maker = self.clone();
            thread::spawn(move || {
                if let Ok(connection) = maker.accept(build, request) {
                    maker.tell(Made::Incoming(connection));
                }
                maker.pending.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn tell(&self, made: Made) {
        // Without a reader, the interface has ended. A full socket wakes the reader, too.
        let _ = self.to.send(made);
        let _ = (&*self.wake).write(&[1]);
    }
}

/// A socket pair, whose ends never wait.
fn wakers() -> Result<(UnixStream, UnixStream)> {
    let pair = || {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        Ok((woken, wake))
    };
    pair().map_err(|error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO).into())
}

/// The longest packet in a peer's private data: its QPN (4 bytes), and its receive buffer (4
/// bytes). RFC 4755 6.
fn longest(private_data: &[u8]) -> Option<usize> {
    let bytes = private_data.get(4..8)?.try_into().ok()?;
    let buffer = u32::from_be_bytes(bytes) as usize;
    (buffer >= HEADER + 68).then(|| (buffer - HEADER).min(MTU))
}

#[cfg(test)]
mod tests {
    use super::{MTU, longest};

    #[test]
    fn a_peer_without_a_sensible_buffer_is_refused() {
        let with = |buffer: u32| longest(&[&[0x80, 0, 0, 9][..], &buffer.to_be_bytes()].concat());
        assert_eq!([with(65524), with(u32::MAX), with(2048)], [Some(MTU), Some(MTU), Some(2044)]);
        assert_eq!([with(0), with(71), longest(&[0; 7])], [None; 3]);
    }
}
