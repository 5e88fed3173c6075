//! Programs' packets on an InfiniBand subnet in simulated time: they wait for credits, lanes and
//! arbitration, as on hardware. The engines are real, and the subnet is `subnet::Managed`.

mod datagrams;
mod faults;
mod flow;
mod net;
mod sharing;
mod stalls;
