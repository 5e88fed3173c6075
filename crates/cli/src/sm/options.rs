//! The options of `softhca sm`. Principal type: [`Sm`].

use clap::Args;
use sm::Settings;

use crate::manager_options::ManagerOptions;

/// The text after the options.
pub(crate) const EXAMPLES: &str = "\
Examples:
  softhca agent --topology subnet.topo
  softhca sm --node H1
      Brings the subnet up, and serves it until ^C.
  softhca sm --node H1 --once
      One sweep, for a script.
  softhca sm --node H2 --priority 5
      A second manager: of several, the one with the highest priority is master.
  softhca sm --node H1 --routing up-down --root 0x2c9000000001
  softhca sm --node H1 --partitions partitions.conf --lids lids.txt
  softhca sm --node H1 --qos qos.conf
      Service levels and virtual lanes. The file has lines like these:
      qos_sl2vl 0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7
      qos_vlarb_low 0:64,1:128

It needs no root: the agent's own user may run it. See docs/subnets.md.";

#[derive(Debug, Args)]
pub(crate) struct Sm {
    /// Run on this node of the agent's topology (softhca agent --topology)
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) port: u8,
    #[command(flatten)]
    manager: ManagerOptions,
    /// End when the subnet is up: with 0, or with 1 if there were errors
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON: one object per line (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

impl Sm {
    /// The settings of the manager.
    pub(crate) fn settings(&self) -> Settings {
        self.manager.over(&Settings::default())
    }
}
