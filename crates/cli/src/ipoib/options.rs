//! The options of `softhca ipoib`. Principal type: [`Ipoib`].

use std::fmt;
use std::net::IpAddr;

use clap::Args;

use super::connection::Service;

/// The text after the options.
pub(crate) const EXAMPLES: &str = "\
Examples:
  softhca ipoib --ip 10.1.0.1/24
      Interface ib0 on port 1 of the first device.
  softhca ipoib --interface ib1 --pkey 0x8001 --ip 10.2.0.1/24
      Another interface, in another partition.
  softhca ipoib --connected --ip 10.1.0.1/24
      Packets of up to 65520 bytes, over reliable connections.
  softhca ipoib --node H1 --ip 10.1.0.1/24
      On a node of the agent's topology (softhca agent --topology).

The interface needs root, or a network namespace of your own (unshare -rn). It
exists until this program ends (^C). Addresses and routes can also be set with
`ip address` and `ip route`. See docs/ipoib.md.";

#[derive(Debug, Args)]
pub(crate) struct Ipoib {
    /// Name of the network interface to make
    #[arg(short, long, value_name = "NAME", default_value = "ib0")]
    pub(crate) interface: String,
    /// Address of the interface, as 10.1.0.1/24. May be repeated
    #[arg(long, value_name = "ADDRESS/BITS", value_parser = network)]
    pub(crate) ip: Vec<Network>,
    /// DEVICE or DEVICE/PORT [default: port 1 of the first device]
    #[arg(short, long, value_name = "DEVICE/PORT")]
    pub(crate) device: Option<String>,
    /// Use this node of the agent's topology (softhca agent --topology)
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The partition [default: the first P_Key of the port]
    #[arg(long, value_name = "P_KEY", value_parser = crate::port::number)]
    pub(crate) pkey: Option<u16>,
    /// Send on connections to neighbours that take them, with an MTU of 65520
    /// (connected mode): reliable ones, or unreliable ones (--connected=uc)
    #[arg(
        short, long, value_name = "SERVICE", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "rc", conflicts_with = "mtu"
    )]
    pub(crate) connected: Option<Service>,
    /// MTU of the interface [default: 2044, or less if the port needs it]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<u32>,
    /// Index of the port's address in its GID table [default: its first IP
    /// address]
    #[arg(short, long, value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
    /// Do not ask a subnet manager for groups and paths
    #[arg(long)]
    pub(crate) no_manager: bool,
    /// Print the line as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// An address and the bits of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

fn network(text: &str) -> Result<Network, String> {
    let (ip, prefix) = text.split_once('/').ok_or("the bits of the network are missing, for example 10.1.0.1/24")?;
    let ip: IpAddr = ip.parse().map_err(|_| format!("{ip} is not an IP address"))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse().ok().filter(|bits| (1..=most).contains(bits));
    let prefix = prefix.ok_or_else(|| format!("the bits of the network must be between 1 and {most}"))?;
    if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        return Err(format!("{ip} cannot be the address of a network interface"));
    }
    Ok(Network { ip, prefix })
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn an_address_has_the_bits_of_its_network() {
        for good in ["10.1.0.1/24", "fd00::1/64", "10.0.0.1/31"] {
            assert_eq!(network(good).expect(good).to_string(), good);
        }
        for bad in ["10.1.0.1", "10.1.0.1/33", "fd00::1/0", "ib0/24", "224.0.0.1/4", "127.0.0.1/8"] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }
}
