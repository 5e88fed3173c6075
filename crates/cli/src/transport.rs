//! `--transport`: how the queue pairs of devices reach each other. The principal type is
//! [`Transport`].

use clap::ValueEnum;

/// The transport of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// That of InfiniBand, over RoCE or with LIDs
    Infiniband,
    /// RDMA over TCP
    Iwarp,
}

impl Transport {
    /// The command-line option for this transport.
    pub(crate) fn option(self) -> String {
        let name = match self {
            Self::Infiniband => "infiniband",
            Self::Iwarp => "iwarp",
        };
        format!("--transport={name}")
    }

    /// The name of this transport, as devices report it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "InfiniBand (0)",
            Self::Iwarp => "iWARP (1)",
        }
    }

    /// The configuration's word for it.
    pub(crate) fn of_agent(self) -> agent::config::Transport {
        match self {
            Self::Infiniband => agent::config::Transport::Infiniband,
            Self::Iwarp => agent::config::Transport::Iwarp,
        }
    }
}
