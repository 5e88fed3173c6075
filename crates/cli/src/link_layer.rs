//! `--link-layer`: how ports address other ports. The principal type is [`LinkLayer`].

use clap::ValueEnum;

/// How a port addresses other ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkLayer {
    /// RoCE: by GID
    Ethernet,
    /// By LID within a subnet, and by GID
    Infiniband,
}

impl LinkLayer {
    /// The command-line option for this link layer.
    pub(crate) fn option(self) -> String {
        format!("--link-layer={}", self.name().to_lowercase())
    }

    /// The name of this link layer, as ports report it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Infiniband => "InfiniBand",
        }
    }
}
