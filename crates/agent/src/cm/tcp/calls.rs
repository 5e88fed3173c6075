//! CONNECT, ACCEPT, REJECT and DISCONNECT: by TCP for ids on iWARP devices, by messages for all
//! others ([`super::super::connecting`]). Adds to [`Manager`].

use abi::Errno;
use abi::ucma::connection::{Accept, Connect, Disconnect, Reject};

use crate::cm::Manager;
use crate::cm::dispatch::CmCall;
use crate::cm::id::Stage;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

impl Manager {
    pub(in crate::cm) fn connect_id(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Connect { conn_param: param, id: name, .. } = call.command.body();
        if !self.goes_by_tcp(call, name)? {
            return self.connect(world, call);
        }
        self.check_room(call)?;
        self.id_in(call, name, &[Stage::RouteResolved])?;
        if param.valid == 0 {
            return refuse(Errno::EINVAL, "the connection's parameters are not marked as valid");
        }
        self.check_stream_qp(world, call, name, param.qp_num)?;
        self.connect_by_tcp(name, &param)?;
        Ok(Vec::new())
    }

    pub(in crate::cm) fn accept_id(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Accept { uid, conn_param: param, id: name, .. } = call.command.body();
        if !self.goes_by_tcp(call, name)? {
            return self.accept(world, call);
        }
        self.check_room(call)?;
        self.id_in(call, name, &[Stage::Connecting])?;
        if param.valid != 0 {
            self.check_stream_qp(world, call, name, param.qp_num)?;
        }
        self.accept_by_tcp(name, &param)?;
        if param.valid != 0 {
            let user = self.owner(call.channel)?.channel.peer.uid;
            self.make_known(name, uid, user);
        }
        Ok(Vec::new())
    }

    pub(in crate::cm) fn reject_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Reject { id: name, private_data_len, private_data, .. } = call.command.body();
        if !self.goes_by_tcp(call, name)? {
            return self.reject(call);
        }
        self.id_in(call, name, &[Stage::Connecting])?;
        self.reject_by_tcp(name, &private_data[..usize::from(private_data_len)])?;
        Ok(Vec::new())
    }

    pub(in crate::cm) fn disconnect_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Disconnect { id: name } = call.command.body();
        if !self.goes_by_tcp(call, name)? {
            return self.disconnect(call);
        }
        self.id_in(call, name, &[Stage::Connecting, Stage::Over])?;
        self.disconnect_by_tcp(name);
        Ok(Vec::new())
    }

    /// Checks the QP that gets the connection. As in Linux's iWARP CM, it must exist.
    fn check_stream_qp(&mut self, world: &World, call: &CmCall<'_>, name: u32, qpn: u32) -> Outcome<()> {
        self.check_qp(world, call, qpn)?;
        let device = self.id(call, name)?.attachment.as_ref().map(|attachment| attachment.device);
        let context = world.qp_with_number(qpn).and_then(|(context, _)| world.contexts.get(&context));
        if context.is_some_and(|context| Some(context.device) == device) {
            return Ok(());
        }
        refuse(Errno::EINVAL, format!("id {name:#x}: its device has no QP {qpn:#x}; create the QP before"))
    }

    /// Whether an id of the call's channel is on an iWARP device.
    fn goes_by_tcp(&mut self, call: &CmCall<'_>, name: u32) -> Outcome<bool> {
        Ok(self.id(call, name)?.start_up().is_some())
    }
}
