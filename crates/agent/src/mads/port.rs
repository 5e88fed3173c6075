//! The services of one port: who is registered for which datagrams, what they wait for, which
//! program is the subnet manager there, and the port's traps. The principal type is
//! [`PortServices`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use abi::umad::MESSAGE_MAX;
use mad::client::Client;
use mad::dispatch::{Interest, RegistrationError, Table};
use mad::transactions::Registration;
use mad::traps::Traps;
use wire::mad::{CLASS_CM, CLASS_SA};
use wire::sa;

use super::way::Way;

/// The owner of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegistrationOwner {
    /// The connection manager of this agent.
    Manager,
    /// Its client of subnet administration.
    Asker,
    /// An open file, and the registration's id there.
    File(u32, u32),
}

/// A registration.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) owner: RegistrationOwner,
    pub(super) qpn: u32,
    pub(super) client: Client<Way>,
    /// How many of the client's bytes count for its user.
    pub(super) counted: usize,
}

/// The services of one port.
#[derive(Debug, Default)]
pub(super) struct PortServices {
    pub(super) table: Table,
    pub(super) registered: BTreeMap<Registration, Registered>,
    pub(super) traps: Traps,
    /// The connection that has `issmN` open.
    pub(super) manager: Option<u32>,
    /// Connections that wait to open it.
    pub(super) candidates: VecDeque<u32>,
    /// Until when its counters in sysfs are new enough.
    pub(super) counted_until: Option<Duration>,
}

impl PortServices {
    /// The services of a new port: the connection manager and its client of subnet administration
    /// are there.
    pub(super) fn new() -> Self {
        let mut port = Self::default();
        /// The version of communication management, and its one method: Send.
        const VERSION: u8 = 2;
        const SEND: u128 = 1 << wire::mad::METHOD_SEND;
        let interest = Interest { qpn: 1, class: CLASS_CM, version: VERSION, methods: SEND, ..Interest::default() };
        // An empty table has room.
        let _ = port.register(interest, RegistrationOwner::Manager);
        let interest = Interest { class: CLASS_SA, version: sa::CLASS_VERSION, methods: 0, ..interest };
        let _ = port.register(interest, RegistrationOwner::Asker);
        port
    }

    /// Registers a client.
    pub(super) fn register(
        &mut self,
        interest: Interest,
        owner: RegistrationOwner,
    ) -> Result<Registration, RegistrationError> {
        let registration = self.table.register(interest)?;
        let rmpp = interest.rmpp_version != 0 && !interest.user_rmpp;
        let client = Client::new(registration, rmpp, MESSAGE_MAX);
        self.registered.insert(registration, Registered { owner, qpn: interest.qpn, client, counted: 0 });
        Ok(registration)
    }

    /// Ends a registration.
    pub(super) fn unregister(&mut self, registration: Registration) -> Option<Registered> {
        self.table.unregister(registration);
        self.registered.remove(&registration)
    }
}
