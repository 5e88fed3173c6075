//! IP over InfiniBand (RFC 4391, 4392, 4755) without sockets, clocks and queue pairs: which
//! datagram an IP packet becomes, and to whom it goes.
//!
//! An [`Interface`] stands between a host, which has IP packets and no link layer, and a queue
//! pair. For the host it asks for link-layer addresses (ARP, neighbour discovery), answers for the
//! host's own addresses, and joins multicast groups. Its owner has the network interface, the queue
//! pair and the subnet administration:
//!
//! ```text
//!    host            Interface                      queue pair, subnet administration
//!    packet ───────▶ outgoing ──▶ To(target)        the owner sends the packet
//!                             ──▶ Held              until Event::Send
//!    packet ◀─────── incoming ◀──────────────────── payload of a datagram
//!                    poll     ──▶ Event::Resolve    the owner finds a path, calls `resolved`
//!                             ──▶ Event::Join       the owner joins a group, calls `joined`
//!                    tick     ◀── the time of `timeout`
//! ```
//!
//! In connected mode, packets for a neighbour go on a connection: the owner makes it after
//! [`Event::Connect`], and calls [`Interface::connected`]. Groups, and neighbours that take no
//! connections, get datagrams.
//!
//! After each call, the owner takes the events with [`Interface::poll`] until there are none. An
//! interface belongs to one partition. A child interface is another value with another P_Key.
//!
//! Everything that peers can make it keep is bounded: neighbours, groups, packets that wait.
//!
//! Principal type: [`Interface`].
#![forbid(unsafe_code)]

pub mod address;
pub mod arp;
mod checksum;
mod connections;
mod discovery;
mod event;
pub mod group;
mod groups;
pub mod header;
mod held;
mod icmp;
mod interface;
mod ip;
pub mod merge;
pub mod ndisc;
mod neighbours;
pub mod offload;
mod routes;
mod segments;
mod time;

pub use address::LinkAddress;
pub use event::{Event, Loss, Outgoing, Target};
pub use group::Partition;
pub use groups::Membership;
pub use header::EtherType;
pub use interface::{Config, Connect, Counters, Interface};
pub use routes::{OwnAddress, Route};
pub use segments::HostPacket;
pub use time::Time;
