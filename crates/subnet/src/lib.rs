//! An InfiniBand fabric as a model: ports, links, switches and routers, in simulated time. It has
//! no clock, no thread and no socket. Packets go in, time is an argument, and deliveries come out.
//! Equal calls give equal results.
//!
//! ```text
//!   inject(end, packet)                                        advance(until) → deliveries
//!         │                                                              ▲
//!     end port ── link ── switch ── link ── router ── link ── switch ── end port
//!      lanes,    credits,  tables            tables
//!   arbitration   faults
//! ```
//!
//! A [`Fabric`] knows no management. Who sets LIDs, tables and states calls
//! [`Fabric::settings_mut`], [`Fabric::switch_mut`] and [`Fabric::set_state`]. Management packets
//! that reach a switch or a router are handed to the owner with the port that they came in by.
//! [`Managed`] is such an owner: a fabric with the agents of its nodes, in which a subnet manager
//! works. Not here: the manager itself, and subnet administration.
//!
//! Where to read first: [`state`], then [`switch`], then [`fabric`], then [`managed`]. [`tunnel`]
//! is a link to a fabric of another host.
//!
//! # The requirements of the link, and where they are
//!
//! Tests are named by these numbers, but for L-14, L-17, L-23 and L-24.
//!
//! | number | subject | here | elsewhere |
//! |--------|---------|------|-----------|
//! | L-1 to L-4 | adapters, switches, routers, subnets | [`fabric::Kind`] | queue pairs: `engine` |
//! | L-5 | rates | [`rate`], training in [`fabric`] | what ports tell: `agent`, SA |
//! | L-6, L-7 | GUIDs | [`fabric::Node`], [`port::Identity`] | NodeInfo: SMA |
//! | L-8 | GID 0 | [`port::Identity::gid`] | other GIDs and GID_CHANGE: `agent` |
//! | L-9 | LIDs, also of switches | [`port::Identity`], `wire::lrh` | who gives them: SM |
//! | L-10 | LMC ranges | [`port::Identity::has`] | path bits of senders: `engine` |
//! | L-11 to L-13 | partitions | [`pkey`], [`port::Enforcement`] | a queue pair's key: `engine` |
//! | L-14 | Q_Keys | | `engine`, seen in tests of `fabric` |
//! | L-15 | virtual lanes | [`port::Settings`], [`fabric`] | |
//! | L-16 | service levels | [`service`] | refusal of an SL above 15: `agent`, `engine` |
//! | L-17 | address vectors by LID | | `engine`, seen in tests of `fabric` |
//! | L-18 | failover | cut links in [`fabric`] | alternate paths: `engine::migration` |
//! | L-19 to L-22 | headers and CRCs | [`frame`] | `wire::lrh`, `wire::vcrc`, `wire::icrc::link` |
//! | L-23 | 40 bytes before a datagram | | `engine`, seen in tests of `fabric` |
//! | L-24 | multicast inside an adapter | | `engine`, seen in tests of `fabric` |
//! | L-30 | credits | [`credit`], [`fabric`] | packet: `wire::flow_control` |
//! | L-31 | arbitration | [`arbitration`] | attribute: SMA |
//! | L-32 | SL to VL | [`service`], [`switch::Switch::vl`] | attribute: SMA |
//! | L-33 | port states | [`state`] | PORT_ACTIVE and PORT_ERR: `agent` |
//! | L-34 | drop rules and their counters | [`counters`], [`switch`], [`port`] | attributes: PMA |
//! | L-35 | multicast copies | [`switch`] | who sets the tables: SM |
//! | L-36 | LIDs of an end port | [`port::Identity::has`] | the port of a queue pair: `engine` |
//! | L-40 | routers | [`router`] | who sets the tables: SM |
//! | L-41 | captures of link type 247 | the bytes: [`Frame::to_bytes`] | the file: `capture` |
#![forbid(unsafe_code)]

pub mod arbitration;
pub mod counters;
pub mod credit;
pub mod deadlock;
pub mod fabric;
pub mod frame;
pub mod managed;
pub mod pkey;
pub mod port;
pub mod rate;
pub mod router;
pub mod service;
pub mod state;
pub mod switch;
pub mod tunnel;

pub use counters::{Cause, Counters};
pub use fabric::{Delivery, End, Fabric, NodeId};
pub use frame::Frame;
pub use managed::Managed;
pub use port::CutBy;
pub use rate::{Mtu, Rate, Speed, Time, Width};
