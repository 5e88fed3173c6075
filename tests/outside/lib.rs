//! A little message queue over RDMA, as somebody could have written it: lines go from a sender to a receiver, who credits them.

use softhca::{Buffer, Completion, Cq, Pd, Qp, Reliable, Result, Unconnected};

/// The longest line.
pub const LINE: usize = 256;

/// The receiving side.
pub struct Receiver {
    qp: Qp<Reliable>,
    cq: Cq,
}

/// A queue pair with receives, to be connected.
pub fn listen(pd: &Pd, cq: &Cq, depth: usize) -> Result<Unconnected<Reliable>> {
    let qp = pd.reliable(cq).receives(depth as u32).build()?;
    for (id, buffer) in pd.buffer(depth * LINE)?.pieces(LINE).into_iter().enumerate() {
        qp.receive(id as u64, buffer)?;
    }
    Ok(qp)
}

impl Receiver {
    /// Receives on a connected queue pair that [`listen`] made.
    pub fn new(qp: Qp<Reliable>, cq: Cq) -> Self {
        Self { qp, cq }
    }

    /// The next line.
    pub fn next(&self) -> Result<String> {
        let came: Completion = self.cq.wait()?.ok()?;
        let line = String::from_utf8_lossy(came.data()).into_owned();
        self.qp.receive(came.id(), came.into_buffer())?;
        Ok(line)
    }
}

/// The sending side: one buffer per line under way.
pub struct Sender {
    qp: Qp<Reliable>,
    cq: Cq,
    free: Vec<Buffer>,
    depth: usize,
}

impl Sender {
    /// Sends on a connected queue pair, `depth` lines at a time.
    pub fn new(pd: &Pd, qp: Qp<Reliable>, cq: Cq, depth: usize) -> Result<Self> {
        Ok(Self { free: pd.buffer(depth * LINE)?.pieces(LINE), qp, cq, depth })
    }

    /// Sends a line, as soon as there is a buffer for it.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let mut buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => self.cq.wait()?.ok()?.into_buffer(),
        };
        let len = line.len().min(LINE);
        buffer[..len].copy_from_slice(&line.as_bytes()[..len]);
        self.qp.send(0, buffer.part(..len))?;
        Ok(())
    }
    /// Waits until every line has arrived: a queue pair that is dropped ends what is under way.
    pub fn finish(mut self) -> Result<()> {
        while self.free.len() < self.depth {
            self.free.push(self.cq.wait()?.ok()?.into_buffer());
        }
        Ok(())
    }
}
