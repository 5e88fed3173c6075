//! Multicast datagrams of programs that leave by links to other agents. Adds to [`Server`].

use super::Server;
use crate::cm::ChannelId;
use crate::ids::ContextId;

/// Maximum number of datagrams of all programs that leave in one piece of work.
const LEAVING: usize = 32;
/// How often one engine's lane is emptied for one command. An engine that writes meanwhile does not
/// hold up the agent.
const ROUNDS: usize = 4;
/// With so many datagrams of a process, the lanes of its further engines wait for the wire thread.
/// So a process with many engines does not hold up the agent either.
const ENOUGH: usize = 256;

impl Server {
    /// Sends datagrams that wait, of each engine in turn.
    pub(super) fn send_to_groups(&mut self) {
        let leaving = self.world.wire.forwarder().to_groups().take_some(LEAVING);
        self.mads.mads.send_to_groups(&mut self.world, leaving);
    }

    /// Sends the datagrams that a context's engine has put on its lane. They must leave before the
    /// program's next command is carried out, which may destroy the sending queue pair or leave the
    /// group, and before the context ends. Returns how many there were.
    pub(super) fn send_datagrams_of(&mut self, context: ContextId) -> usize {
        let Some(buffer) = &mut self.mads.lane_buffer else { return 0 };
        let mut sent = 0;
        for _ in 0..ROUNDS {
            let forwarder = self.world.wire.forwarder();
            let has_more = forwarder.take_records(context.0, buffer);
            let leaving = forwarder.to_groups().take_of(context.0);
            sent += leaving.len();
            self.mads.mads.send_to_groups(&mut self.world, leaving);
            if !has_more {
                break;
            }
        }
        if sent > 0 {
            self.follow_mads();
        }
        sent
    }

    /// The same for the engines of the process that has a channel of the connection manager.
    pub(super) fn send_datagrams_of_process(&mut self, channel: ChannelId) {
        if self.mads.lane_buffer.is_none() {
            return;
        }
        let Some(process) = self.manager.process_of(channel) else { return };
        let contexts = self.world.contexts.iter();
        let of_process = contexts.filter(|(_, context)| (context.peer.pid, context.peer.uid) == process);
        let mut sent = 0;
        for context in of_process.map(|(id, _)| *id).collect::<Vec<_>>() {
            sent += self.send_datagrams_of(context);
            if sent >= ENOUGH {
                break;
            }
        }
    }
}
