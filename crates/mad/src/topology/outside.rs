//! A node of another agent, as a link names it: `@10.0.0.2/S2`, `@10.0.0.2:5000/S2` or
//! `@[fd00::2]:5000/S2`. Between the two agents the link is a tunnel. Principal type: [`Outside`].

use super::Link;
use std::net::{IpAddr, SocketAddr};

/// The mark at the beginning of such a name. No node of the file has a name that begins so.
pub(super) const MARK: char = '@';
/// The longest name of a node that such a link leads to or from, in bytes.
pub(super) const LONGEST_NAME: usize = 200;

/// A node of another agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside<'a> {
    /// The address of the agent.
    pub address: IpAddr,
    /// The UDP port of its tunnels, if it is not the usual one.
    pub udp_port: Option<u16>,
    /// The name of the node there.
    pub node: &'a str,
}

impl<'a> Outside<'a> {
    /// Reads a name that begins with `@`. `None` if it says something else.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Outside<'a>> {
        let (agent, node) = name.strip_prefix(MARK)?.split_once('/')?;
        if node.is_empty() || node.len() > LONGEST_NAME {
            return None;
        }
        let bare = agent.strip_prefix('[').and_then(|agent| agent.strip_suffix(']')).unwrap_or(agent);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Outside { address, udp_port: None, node });
        }
        let socket: SocketAddr = agent.parse().ok().filter(|socket: &SocketAddr| socket.port() != 0)?;
        Some(Outside { address: socket.ip(), udp_port: Some(socket.port()), node })
    }
}

impl Link {
    /// The node of another agent to which the link leads, if it leads to one.
    #[must_use]
    pub fn outside(&self) -> Option<Outside<'_>> {
        Outside::parse(&self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_address_a_port_and_a_node() {
        let read = |name| {
            let outside = Outside::parse(name)?;
            Some((outside.address.to_string(), outside.udp_port, outside.node))
        };
        assert_eq!(read("@10.0.0.2/S2"), Some(("10.0.0.2".to_owned(), None, "S2")));
        assert_eq!(read("@10.0.0.2:5000/a/b"), Some(("10.0.0.2".to_owned(), Some(5000), "a/b")));
        assert_eq!(read("@[fd00::2]:5000/S2"), Some(("fd00::2".to_owned(), Some(5000), "S2")));
        assert_eq!(read("@[fd00::2]/S2"), read("@fd00::2/S2"));
        for wrong in ["S2", "@S2", "@10.0.0.2", "@10.0.0.2/", "@10.0.0.2:0/S2", "@host/S2", "@10.0.0.2:70000/S2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
