//! A client of the agent without the engine library. It registers as an engine, and then sends any
//! command and writes any bytes to its lanes. The principal type is [`Client`].

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use abi::command::{extended, legacy, number};
use abi::cq::{CreateCq, CreateCqAnswer};
use abi::device::{GetContext, GetContextAnswer};
use abi::layout::Record;
use abi::pd::{AllocPd, AllocPdAnswer};
use abi::private::{EngineHello, EngineHelloAnswer};
use abi::qp::{CreateQp, CreateQpAnswer, kind};
use engine::{Answer, Control, Error, SocketControl};
use shm::notifier::Notifier;
use shm::region::Region;

/// One open device.
pub(crate) struct Client {
    pub(crate) control: SocketControl,
    _held: Vec<OwnedFd>,
}

/// The handles of the client's objects.
pub(crate) struct Objects {
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) qp: u32,
    pub(crate) qpn: u32,
}

impl Client {
    /// Opens the device.
    pub(crate) fn open(run_dir: &Path) -> Result<Self, Error> {
        let control = SocketControl::open(&engine::rundir::node(run_dir, 0), 0)?;
        let context = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], size_of::<GetContextAnswer>() + 64);
        let held = control.call(&context, &[])?.fds;
        Ok(Self { control, _held: held })
    }

    /// Announces an engine to the agent, and returns the agent's answer.
    pub(crate) fn hello(&mut self) -> Result<Vec<u8>, Error> {
        let (_, wake_word) = Region::create("wake-word", 4096).map_err(told)?;
        let kick = OwnedFd::from(Notifier::new().map_err(told)?);
        let hello =
            extended(number::ENGINE_HELLO, &EngineHello { pid: 1, flags: 0 }, size_of::<EngineHelloAnswer>(), 0);
        let answer = self.control.call(&hello, &[wake_word.as_fd(), kick.as_fd()])?;
        self._held.extend(answer.fds);
        self._held.push(kick);
        Ok(answer.bytes)
    }

    /// Makes a PD, a CQ and a QP.
    pub(crate) fn objects(&self) -> Result<Objects, Error> {
        let pd: AllocPdAnswer = get(&self.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12))?)?;
        let cq = CreateCq { response: 1, cqe: 8, comp_channel: -1, ..CreateCq::default() };
        let cq: CreateCqAnswer = get(&self.call(&legacy(number::CREATE_CQ, &cq, &[], 8 + 56))?)?;
        let qp: CreateQpAnswer = get(&self.call(&create_qp(pd.pd_handle, cq.cq_handle))?)?;
        Ok(Objects { pd: pd.pd_handle, cq: cq.cq_handle, qp: qp.qp_handle, qpn: qp.qpn })
    }

    /// Sends a command and returns the agent's answer.
    pub(crate) fn call(&self, request: &[u8]) -> Result<Answer, Error> {
        self.control.call(request, &[])
    }
}

/// The command that creates an RC QP.
pub(crate) fn create_qp(pd_handle: u32, cq: u32) -> Vec<u8> {
    let qp = CreateQp {
        response: 1,
        pd_handle,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        qp_type: kind::RC,
        ..CreateQp::default()
    };
    legacy(number::CREATE_QP, &qp, &[], 32 + 72)
}

fn get<T: Record>(answer: &Answer) -> Result<T, Error> {
    T::read(&answer.bytes).ok_or_else(|| told("the answer is too short"))
}

fn told(why: impl std::fmt::Display) -> Error {
    Error::new(abi::Errno::EIO, why.to_string())
}
