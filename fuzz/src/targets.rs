//! A module for each target.

pub(crate) mod administration;
pub(crate) mod client;
pub(crate) mod command;
pub(crate) mod datagram;
pub(crate) mod ipoib;
pub(crate) mod iwarp;
pub(crate) mod lane;
pub(crate) mod management;
pub(crate) mod manager;
pub(crate) mod message;
pub(crate) mod packet;
pub(crate) mod receive;
pub(crate) mod rsocket;
pub(crate) mod subnet;
pub(crate) mod topology;
pub(crate) mod tunnel;
