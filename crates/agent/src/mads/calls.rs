//! What programs ask of the files `umadN` and `issmN`: to open and close them, ioctl and write. The
//! rules and errors are those of Linux's `user_mad.c`. Adds to [`Mads`].

use std::time::Duration;

use abi::umad::client::Key;
use abi::umad::{Holder, RegisterAgent, RegisterAgent2, UserMad, agent_flag, ioctl};
use abi::{Errno, Record};
use mad::dispatch::{self, Interest};
use mad::{client, transactions};
use wire::mad::{CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, LEN};

use super::Mads;
use super::file::UmadFile;
use super::managed::has_subnet_management;
use super::port::RegistrationOwner;
use super::way::{PortId, Way};
use crate::world::World;

/// Maximum number of registrations of one user at a port.
const USER_AGENTS_MAX: usize = 1024;

/// The shortest datagram that a program may write: the common header, and that of RMPP.
const SHORTEST: usize = 36;

/// An attempt to open `issmN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IssmOpen {
    /// It is open.
    Now,
    /// Another program has it open, and the connection waits.
    Later,
}

impl Mads {
    /// Opens `umadN` of a port for the connection `name`, of a process and its user. Returns the
    /// file's key.
    pub(crate) fn open(&mut self, world: &World, name: u32, who: (u32, u32), at: PortId) -> Result<Key, Errno> {
        if !self.ports.contains_key(&at) {
            return Err(Errno::ENODEV);
        }
        let mut key = Key::default();
        for half in key.chunks_exact_mut(8) {
            half.copy_from_slice(&world.system.secret().to_ne_bytes());
        }
        // Without randomness, a key would not keep other users out.
        if key == Key::default() || self.keys.contains_key(&key) {
            return Err(Errno::EIO);
        }
        self.files.insert(name, UmadFile::new(who, at, key));
        self.keys.insert(key, name);
        Ok(key)
    }

    /// Closes a file, or a connection that has `issmN` open or waits for it.
    pub(crate) fn close(&mut self, world: &mut World, name: u32) {
        self.forget(name);
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        for at in ports {
            let Some(port) = self.ports.get_mut(&at) else { continue };
            port.candidates.retain(|candidate| *candidate != name);
            if port.manager == Some(name) {
                port.manager = port.candidates.pop_front();
                self.results.granted.extend(port.manager);
                let has_manager = port.manager.is_some();
                self.show_manager(world, at, has_manager);
            }
        }
        self.settle(world);
    }

    /// Opens `issmN` of a port for the connection `name`.
    pub(crate) fn open_manager(
        &mut self,
        world: &mut World,
        name: u32,
        at: PortId,
        nonblocking: bool,
    ) -> Result<IssmOpen, Errno> {
        if !has_subnet_management(world, at.device, at.port) {
            return Err(Errno::ENODEV);
        }
        let port = self.ports.get_mut(&at).ok_or(Errno::ENODEV)?;
        match port.manager {
            Some(_) if nonblocking => Err(Errno::EAGAIN),
            Some(_) => {
                port.candidates.push_back(name);
                Ok(IssmOpen::Later)
            }
            None => {
                port.manager = Some(name);
                self.show_manager(world, at, true);
                self.settle(world);
                Ok(IssmOpen::Now)
            }
        }
    }

    /// The capability mask of a port says whether a subnet manager runs there.
    fn show_manager(&mut self, world: &mut World, at: PortId, has_manager: bool) {
        let Some(port) = world.devices.get_mut(at.device).and_then(|it| it.ports.get_mut(usize::from(at.port) - 1))
        else {
            return;
        };
        if std::mem::replace(&mut port.has_manager, has_manager) == has_manager {
            return;
        }
        self.results.ports_changed = true;
        if self.show_manager_in_fabric(at, has_manager) {
            return;
        }
        let mask = world.devices.get(at.device).and_then(|device| device.port_attributes(at.port.into()).ok());
        let (Some(facts), Some(device)) = (mask, self.devices.get_mut(at.device)) else { return };
        let notice = device.node.change_capability(at.port, facts.port_cap_flags);
        if let (Some(notice), Some(port)) = (notice, self.ports.get_mut(&at)) {
            port.traps.push(notice);
        }
    }

    /// Carries out ioctl on the file with this key. Changes `argument` to the result.
    pub(crate) fn ioctl(&mut self, world: &World, key: &Key, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let name = *self.keys.get(key).ok_or(Errno::EIO)?;
        match request {
            ioctl::REGISTER_AGENT => self.register_agent(world, name, argument)?,
            ioctl::REGISTER_AGENT2 => self.register_agent2(world, name, argument)?,
            ioctl::UNREGISTER_AGENT => {
                let id = u32::from_ne_bytes(*argument.first_chunk().ok_or(Errno::EFAULT)?);
                let file = self.files.get_mut(&name).ok_or(Errno::EIO)?;
                let agent = file.set_agent(id as usize, None).ok_or(Errno::EINVAL)?;
                let (uid, at) = (file.uid, file.at);
                self.unregister(uid, at, agent);
            }
            ioctl::ENABLE_PKEY => {
                let file = self.files.get(&name).ok_or(Errno::EIO)?;
                if file.was_used {
                    return Err(Errno::EINVAL);
                }
                self.enable_pkey(name);
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(())
    }

    /// How long the headers of a file's messages are; 0 if there is no such file.
    pub(crate) fn header_len(&self, key: &Key) -> usize {
        self.keys.get(key).and_then(|name| self.files.get(name)).map_or(0, UmadFile::header_len)
    }

    fn register_agent(&mut self, world: &World, name: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let mut asked = RegisterAgent::read(argument).ok_or(Errno::EFAULT)?;
        let interest = interest_of(&asked);
        asked.id = self.register(world, name, interest)?;
        argument.copy_from_slice(asked.bytes());
        Ok(())
    }

    fn register_agent2(&mut self, world: &World, name: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let mut asked = RegisterAgent2::read(argument).ok_or(Errno::EFAULT)?;
        if asked.flags & !agent_flag::USER_RMPP != 0 {
            asked.flags = agent_flag::USER_RMPP;
            argument.copy_from_slice(asked.bytes());
            return Err(Errno::EINVAL);
        }
        if asked.oui & 0xff00_0000 != 0 {
            return Err(Errno::EINVAL);
        }
        let interest = interest_of2(&asked);
        let is_first = self.files.get(&name).is_some_and(|file| !file.was_used);
        asked.id = self.register(world, name, interest)?;
        // The first registration of a file decides how long its headers are.
        if is_first {
            self.enable_pkey(name);
        }
        argument.copy_from_slice(asked.bytes());
        Ok(())
    }

    /// Who serves a method for which an ioctl on the file with this key wants to register.
    pub(crate) fn holder(&self, key: &Key, request: u32, argument: &[u8]) -> Option<Holder> {
        let interest = match request {
            ioctl::REGISTER_AGENT => interest_of(&RegisterAgent::read(argument)?),
            ioctl::REGISTER_AGENT2 => interest_of2(&RegisterAgent2::read(argument)?),
            _ => return None,
        };
        let file = self.files.get(self.keys.get(key)?)?;
        let port = self.ports.get(&file.at)?;
        let (method, registration) = port.table.holder(&interest)?;
        let (pid, uid) = match port.registered.get(&registration)?.owner {
            RegistrationOwner::File(name, _) => self.files.get(&name).map(|file| (file.pid, file.uid))?,
            RegistrationOwner::Manager | RegistrationOwner::Asker => {
                (std::process::id(), rustix::process::geteuid().as_raw())
            }
        };
        Some(Holder { pid, uid, method: method.into(), reserved: 0 })
    }

    fn enable_pkey(&mut self, name: u32) {
        if let Some(file) = self.files.get_mut(&name) {
            file.has_pkey_index = true;
        }
    }

    fn register(&mut self, world: &World, name: u32, interest: Interest) -> Result<u32, Errno> {
        let file = self.files.get(&name).ok_or(Errno::EIO)?;
        let (at, uid) = (file.at, file.uid);
        if interest.qpn == 0 && !has_subnet_management(world, at.device, at.port) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let id = file.free_id().ok_or(Errno::ENOMEM)?;
        let of_user = self.files.values().filter(|file| file.uid == uid && file.at == at);
        if of_user.map(|file| file.agents().count()).sum::<usize>() >= USER_AGENTS_MAX {
            return Err(Errno::ENOMEM);
        }
        let port = self.ports.get_mut(&at).ok_or(Errno::ENODEV)?;
        let agent = port.register(interest, RegistrationOwner::File(name, id as u32)).map_err(|refusal| {
            tracing::debug!(uid, "a registration for MADs is refused: {refusal}");
            if refusal == dispatch::RegistrationError::Full { Errno::ENOMEM } else { Errno::EINVAL }
        })?;
        if let Some(file) = self.files.get_mut(&name) {
            file.was_used = true;
            file.set_agent(id, Some(agent));
        }
        Ok(id as u32)
    }

    /// Takes a message that a program has written to the connection of a file, where no call waits
    /// for the result. A failure is a message with its errno.
    pub(crate) fn take_written(&mut self, world: &mut World, name: u32, record: &[u8]) {
        let Some(key) = self.files.get(&name).map(|file| file.key) else { return };
        let Err(errno) = self.write(world, &key, record) else { return };
        let Some(file) = self.files.get_mut(&name) else { return };
        let (header, message) = record.split_at(file.header_len().min(record.len()));
        let header = UserMad::read_zero_extended(header);
        let before = file.bytes();
        file.push(header.id, errno.0.unsigned_abs(), &Way::of(&header), &message[..LEN.min(message.len())]);
        self.accounts.change(file.uid, before, file.bytes());
        self.results.readable.push(name);
    }

    /// Writes a datagram to the file with this key: a header, and what follows.
    pub(crate) fn write(&mut self, world: &mut World, key: &Key, record: &[u8]) -> Result<(), Errno> {
        let name = *self.keys.get(key).ok_or(Errno::EIO)?;
        let file = self.files.get(&name).ok_or(Errno::EIO)?;
        let header_len = file.header_len();
        let message = record.get(header_len..).filter(|message| message.len() >= SHORTEST).ok_or(Errno::EINVAL)?;
        let header = UserMad::read_zero_extended(&record[..header_len]);
        let agent = file.agent(header.id).ok_or(Errno::EINVAL)?;
        if !self.accounts.has_room(file.uid, message.len()) {
            return Err(Errno::ENOMEM);
        }
        let (at, now) = (file.at, self.now());
        let way = Way::of(&header);
        let port = self.ports.get_mut(&at).ok_or(Errno::EIO)?;
        let registered = port.registered.get_mut(&agent).ok_or(Errno::EINVAL)?;
        check_class(message[1], registered.qpn)?;
        let timeout = Duration::from_millis(header.timeout_ms.into());
        registered.client.send(way, message, timeout, header.retries, now).map_err(|refusal| {
            tracing::debug!(uid = file.uid, "a MAD is not sent: {refusal}");
            match refusal {
                client::SendError::Full | client::SendError::Transaction(transactions::TransactionError::Full) => {
                    Errno::ENOMEM
                }
                client::SendError::Length(_) | client::SendError::Transaction(_) => Errno::EINVAL,
            }
        })?;
        self.follow_client(at, agent);
        self.settle(world);
        Ok(())
    }
}

fn interest_of(asked: &RegisterAgent) -> Interest {
    Interest {
        qpn: asked.qpn.into(),
        class: asked.mgmt_class,
        version: asked.mgmt_class_version,
        oui: u32::from_be_bytes([0, asked.oui[0], asked.oui[1], asked.oui[2]]),
        methods: asked.method_mask.iter().rev().fold(0, |mask, word| mask << 32 | u128::from(*word)),
        rmpp_version: asked.rmpp_version,
        user_rmpp: false,
    }
}

fn interest_of2(asked: &RegisterAgent2) -> Interest {
    Interest {
        qpn: asked.qpn,
        class: asked.mgmt_class,
        version: asked.mgmt_class_version,
        oui: asked.oui,
        methods: u128::from(asked.method_mask[1]) << 64 | u128::from(asked.method_mask[0]),
        rmpp_version: asked.rmpp_version,
        user_rmpp: asked.flags & agent_flag::USER_RMPP != 0,
    }
}

/// Each queue pair has its own classes.
fn check_class(class: u8, qpn: u32) -> Result<(), Errno> {
    let subnet = matches!(class, CLASS_SUBN_LID | CLASS_SUBN_DIRECTED);
    if subnet == (qpn == 0) { Ok(()) } else { Err(Errno::EINVAL) }
}
