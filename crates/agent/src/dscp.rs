//! The DSCP of each service level of an Ethernet port: how service levels become priorities in the
//! network, because RoCEv2 has no field for them (RFC 2474). The principal type is [`DscpTable`].

use abi::ah::{SL_MAX, traffic_class};
use serde::{Deserialize, Deserializer, Serialize};

/// The largest DSCP: it has 6 bits.
const DSCP_MAX: u8 = 63;

/// A DSCP for each service level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct DscpTable([u8; SL_MAX as usize + 1]);

impl DscpTable {
    /// The traffic class of packets with this service level and, in their address vector, this
    /// traffic class.
    pub fn traffic_class(&self, sl: u8, asked: u8) -> u8 {
        traffic_class(self.0[usize::from(sl & SL_MAX)], asked)
    }

    /// The table as words of the board: four service levels in each, the first in the lowest byte.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        self.0.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four))
    }
}

/// A list: the DSCP of service level 0, 1, …; those that are not in the list have DSCP 0.
impl<'de> Deserialize<'de> for DscpTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Vec::<u8>::deserialize(deserializer)?;
        let mut table = Self::default();
        if given.len() > table.0.len() {
            let (count, most) = (given.len(), table.0.len());
            return Err(serde::de::Error::custom(format!(
                "`dscp` has {count} entries; there are {most} service levels"
            )));
        }
        for (sl, (entry, dscp)) in table.0.iter_mut().zip(given).enumerate() {
            if dscp > DSCP_MAX {
                let text = format!("`dscp` of service level {sl} is {dscp}; 0 to {DSCP_MAX} are possible");
                return Err(serde::de::Error::custom(text));
            }
            *entry = dscp;
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_where_the_address_names_no_dscp() {
        let table: DscpTable = serde_json::from_str("[0, 10, 46]").expect("valid");
        assert_eq!(table.traffic_class(0, 0), 0);
        assert_eq!(table.traffic_class(2, 0), 46 << 2);
        assert_eq!(table.traffic_class(2, 1), 46 << 2 | 1, "the ECN bits stay");
        assert_eq!(table.traffic_class(2, 8 << 2), 8 << 2, "the address vector decides");
        assert_eq!(table.traffic_class(15, 0), 0);
        assert_eq!(table.words().collect::<Vec<_>>(), [46 << 16 | 10 << 8, 0, 0, 0]);
    }

    #[test]
    fn values_that_are_no_dscp_are_refused() {
        for (text, told) in [
            ("[64]".to_owned(), "`dscp` of service level 0 is 64; 0 to 63 are possible"),
            (format!("[{}1]", "1,".repeat(16)), "`dscp` has 17 entries; there are 16 service levels"),
        ] {
            let said = serde_json::from_str::<DscpTable>(&text).expect_err("refused").to_string();
            assert!(said.contains(told), "{said}");
        }
    }
}
