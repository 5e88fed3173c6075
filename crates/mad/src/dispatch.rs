//! Which client serves which datagrams: registrations by class, version and method. Not the
//! clients. The rules are those of Linux's umad. Principal type: [`Table`].
//!
//! * A client registers for a queue pair and a class. With class 0 it only sends requests of any
//!   class, and gets the answers.
//! * Subnet management has two classes, by LID and by directed route. A registration is for one of
//!   them.
//! * A client that names methods gets the requests of these methods. No two clients may have the
//!   same class, version and method of one queue pair; vendor classes are also told apart by OUI.
//! * An answer goes to the client whose number is the upper half of its transaction id.
//! * All other datagrams belong to no client.

use crate::transactions::{Registration, is_response};
use std::collections::BTreeMap;
use wire::mad::{
    CLASS_DEVICE, CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, CLASSES_VENDOR_OUI, Header, METHOD_TRAP_REPRESS, Mad,
    RESPONSE,
};
use wire::{rmpp, vendor};

/// The registrations that a table can hold.
pub const MOST: usize = 4096;

/// What a client registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// The queue pair, 0 or 1.
    pub qpn: u32,
    /// The class; 0 only sends requests.
    pub class: u8,
    /// The version of the class.
    pub version: u8,
    /// The vendor of a class with an OUI.
    pub oui: u32,
    /// The methods whose requests the client serves: bit n is method n.
    pub methods: u128,
    /// The version of RMPP that the table's owner speaks for this client; 0 for none.
    pub rmpp_version: u8,
    /// The client itself speaks RMPP.
    pub user_rmpp: bool,
}

/// Why a registration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// The queue pair is not one for management.
    #[error("QP {0:#x} has no management datagrams; register for QP 0 or 1")]
    QueuePair(u32),
    /// The class does not belong to the queue pair.
    #[error("class {class:#04x} does not belong to QP {qpn}")]
    Class {
        /// The class.
        class: u8,
        /// The queue pair.
        qpn: u32,
    },
    /// Methods without a class.
    #[error("class 0 serves no requests; name a class, or no methods")]
    MethodsWithoutClass,
    /// A class with an OUI needs one.
    #[error("class {0:#04x} is told apart by vendor; give an OUI")]
    NoOui(u8),
    /// The class has no RMPP, or the version is unknown.
    #[error("class {class:#04x} has no RMPP of version {version}")]
    Rmpp {
        /// The class.
        class: u8,
        /// The version.
        version: u8,
    },
    /// Another client serves the method.
    #[error("another client serves method {method:#04x} of class {class:#04x} version {version}")]
    Served {
        /// The method.
        method: u8,
        /// The class.
        class: u8,
        /// Its version.
        version: u8,
    },
    /// The table is full.
    #[error("{MOST} clients are registered; close some of them")]
    Full,
}

/// The registrations of one port.
#[derive(Clone, Debug, Default)]
pub struct Table {
    clients: BTreeMap<Registration, Interest>,
    servers: BTreeMap<Server, Registration>,
    last: u32,
}

/// Which requests are served: the queue pair, class, version, vendor and method.
type Server = (u32, u8, u8, u32, u8);

/// Whether datagrams of a class carry the header of RMPP.
#[must_use]
pub fn has_rmpp(class: u8) -> bool {
    class == CLASS_SA || class == CLASS_DEVICE || CLASSES_VENDOR_OUI.contains(&class)
}

impl Table {
    /// Registers a client.
    ///
    /// # Errors
    /// The rules of this module forbid it. The table stays as it was.
    pub fn register(&mut self, interest: Interest) -> Result<Registration, RegistrationError> {
        let Interest { qpn, class, version, oui, methods, rmpp_version, .. } = interest;
        if qpn > 1 {
            return Err(RegistrationError::QueuePair(qpn));
        }
        let subnet = class == CLASS_SUBN_LID || class == CLASS_SUBN_DIRECTED;
        if class != 0 && subnet != (qpn == 0) || class & RESPONSE != 0 && !subnet {
            return Err(RegistrationError::Class { class, qpn });
        }
        if class == 0 && methods != 0 {
            return Err(RegistrationError::MethodsWithoutClass);
        }
        if CLASSES_VENDOR_OUI.contains(&class) && oui & 0xff_ffff == 0 {
            return Err(RegistrationError::NoOui(class));
        }
        if rmpp_version > rmpp::VERSION || rmpp_version != 0 && class != 0 && !has_rmpp(class) {
            return Err(RegistrationError::Rmpp { class, version: rmpp_version });
        }
        if self.clients.len() == MOST {
            return Err(RegistrationError::Full);
        }
        if let Some((method, _)) = self.holder(&interest) {
            return Err(RegistrationError::Served { method, class, version });
        }
        let registration = self.free();
        self.servers.extend(servers(&interest).map(|server| (server, registration)));
        self.clients.insert(registration, interest);
        Ok(registration)
    }

    /// The first method that a client would serve and another one serves, and that one.
    #[must_use]
    pub fn holder(&self, interest: &Interest) -> Option<(u8, Registration)> {
        servers(interest).find_map(|server| Some((server.4, *self.servers.get(&server)?)))
    }

    /// Ends a registration. Returns whether there was one.
    pub fn unregister(&mut self, registration: Registration) -> bool {
        let Some(interest) = self.clients.remove(&registration) else { return false };
        for server in servers(&interest) {
            self.servers.remove(&server);
        }
        true
    }

    /// What a client has registered.
    #[must_use]
    pub fn interest(&self, registration: Registration) -> Option<&Interest> {
        self.clients.get(&registration)
    }

    /// The client that a datagram of this queue pair is for. Whether it waits for the answer is for
    /// its [`crate::transactions::Transactions`] to say.
    #[must_use]
    pub fn find(&self, qpn: u32, mad: &Mad) -> Option<Registration> {
        let header = Header::of(mad);
        if is_response(&header) {
            return self.requester(qpn, &header);
        }
        let oui = if CLASSES_VENDOR_OUI.contains(&header.class) { vendor::Header::parse(mad).oui } else { 0 };
        self.servers.get(&(qpn, header.class, header.class_version, oui, header.method)).copied()
    }

    fn requester(&self, qpn: u32, header: &Header) -> Option<Registration> {
        let registration = Registration::of(header.transaction);
        (self.clients.get(&registration)?.qpn == qpn).then_some(registration)
    }

    /// A number that no client has, and that the last clients did not have.
    fn free(&mut self) -> Registration {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if !self.clients.contains_key(&Registration(self.last)) {
                return Registration(self.last);
            }
        }
    }
}

/// The requests that a client serves. Responses have no server.
fn servers(interest: &Interest) -> impl Iterator<Item = Server> {
    let Interest { qpn, class, version, oui, methods, .. } = *interest;
    let oui = if CLASSES_VENDOR_OUI.contains(&class) { oui & 0xff_ffff } else { 0 };
    (0..RESPONSE)
        .filter(move |method| methods >> method & 1 != 0 && *method != METHOD_TRAP_REPRESS)
        .map(move |method| (qpn, class, version, oui, method))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::mad::{MAD_LEN, METHOD_GET, METHOD_SET, METHOD_TRAP};

    fn methods(methods: &[u8]) -> u128 {
        methods.iter().fold(0, |mask, method| mask | 1 << method)
    }

    fn mad(class: u8, version: u8, method: u8, transaction: u64) -> Mad {
        let mut mad = [0; MAD_LEN];
        Header { base_version: 1, class, class_version: version, method, transaction, ..Header::default() }
            .emit_to(&mut mad);
        mad
    }

    fn sa() -> Interest {
        let methods = methods(&[METHOD_GET, METHOD_SET]);
        Interest { qpn: 1, class: CLASS_SA, version: 2, methods, rmpp_version: 1, ..Interest::default() }
    }

    #[test]
    fn requests_go_to_their_server_and_answers_to_their_requester() {
        let mut table = Table::default();
        let server = table.register(sa()).unwrap();
        let client = table.register(Interest { methods: 0, ..sa() }).unwrap();
        let any = table.register(Interest { qpn: 1, ..Interest::default() }).unwrap();
        assert_eq!(table.find(1, &mad(CLASS_SA, 2, METHOD_GET, 9)), Some(server));
        assert_eq!(table.find(0, &mad(CLASS_SA, 2, METHOD_GET, 9)), None);
        assert_eq!(table.find(1, &mad(CLASS_SA, 1, METHOD_GET, 9)), None);
        assert_eq!(table.find(1, &mad(CLASS_SA, 2, METHOD_TRAP, 9)), None);
        let answer = |client: Registration| mad(CLASS_SA, 2, METHOD_GET | RESPONSE, client.transaction(9));
        assert_eq!(table.find(1, &answer(client)), Some(client));
        assert_eq!(table.find(1, &answer(any)), Some(any));
        assert_eq!(table.find(1, &answer(Registration(99))), None);
        assert!(table.unregister(server) && !table.unregister(server));
        assert_eq!(table.find(1, &mad(CLASS_SA, 2, METHOD_GET, 9)), None);
    }

    #[test]
    fn one_method_has_one_server() {
        let mut table = Table::default();
        let first = table.register(sa()).unwrap();
        let refused = table.register(Interest { methods: methods(&[METHOD_TRAP, METHOD_SET]), ..sa() });
        assert_eq!(refused, Err(RegistrationError::Served { method: METHOD_SET, class: CLASS_SA, version: 2 }));
        assert_eq!(table.find(1, &mad(CLASS_SA, 2, METHOD_TRAP, 0)), None, "a refused registration serves nothing");
        assert!(table.register(Interest { version: 1, ..sa() }).is_ok());
        table.unregister(first);
        assert!(table.register(sa()).is_ok());
    }

    #[test]
    fn the_two_classes_of_subnet_management_have_their_own_servers() {
        let mut table = Table::default();
        let trap = methods(&[METHOD_TRAP]);
        let directed = Interest { class: CLASS_SUBN_DIRECTED, version: 1, methods: trap, ..Interest::default() };
        let first = table.register(directed).unwrap();
        assert_eq!(table.find(0, &mad(CLASS_SUBN_LID, 1, METHOD_TRAP, 0)), None);
        // opensm registers for both.
        let second = table.register(Interest { class: CLASS_SUBN_LID, ..directed }).unwrap();
        assert_eq!(table.find(0, &mad(CLASS_SUBN_LID, 1, METHOD_TRAP, 0)), Some(second));
        assert_eq!(table.find(0, &mad(CLASS_SUBN_DIRECTED, 1, METHOD_TRAP, 0)), Some(first));
    }

    #[test]
    fn vendors_share_a_class() {
        let mut table = Table::default();
        let ping = Interest { qpn: 1, class: 0x32, version: 1, oui: 0x1405, methods: 2, ..Interest::default() };
        let first = table.register(ping).unwrap();
        let second = table.register(Interest { oui: 0x2c9, ..ping }).unwrap();
        let mut datagram = mad(0x32, 1, METHOD_GET, 0);
        assert_eq!(table.find(1, &datagram), None);
        // The OUI is in bytes 37 to 39, as ibping sends it.
        datagram[36..40].copy_from_slice(&[0, 0x14, 5, 0]);
        assert_eq!(table.find(1, &datagram), None);
        datagram[36..40].copy_from_slice(&[0, 0, 0x14, 5]);
        assert_eq!(table.find(1, &datagram), Some(first));
        datagram[36..40].copy_from_slice(&[0, 0, 2, 0xc9]);
        assert_eq!(table.find(1, &datagram), Some(second));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut table = Table::default();
        let refused = |interest| Table::default().register(interest).unwrap_err();
        assert_eq!(refused(Interest { qpn: 2, ..sa() }), RegistrationError::QueuePair(2));
        assert_eq!(refused(Interest { qpn: 0, ..sa() }), RegistrationError::Class { class: CLASS_SA, qpn: 0 });
        assert_eq!(refused(Interest { class: 0x83, ..sa() }), RegistrationError::Class { class: 0x83, qpn: 1 });
        assert_eq!(refused(Interest { class: 0, ..sa() }), RegistrationError::MethodsWithoutClass);
        assert_eq!(refused(Interest { class: 0x30, ..sa() }), RegistrationError::NoOui(0x30));
        assert_eq!(refused(Interest { class: 4, ..sa() }), RegistrationError::Rmpp { class: 4, version: 1 });
        assert_eq!(
            refused(Interest { rmpp_version: 2, ..sa() }),
            RegistrationError::Rmpp { class: CLASS_SA, version: 2 }
        );
        for _ in 0..MOST {
            table.register(Interest { methods: 0, ..sa() }).unwrap();
        }
        assert_eq!(table.register(sa()), Err(RegistrationError::Full));
    }
}
