//! The file of service levels and virtual lanes: one setting a line, in the form of the options of
//! opensm (`qos_sl2vl 0,1,2,…`, with or without `qos_`). Text after `#` is ignored. The function is
//! [`parse`].

use crate::config::Qos;
use wire::smp::VlWeight;

/// The longest arbitration table.
const MOST_WEIGHTS: usize = 64;
/// Lanes of data.
const LANES: u8 = 15;

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct QosError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Service levels and arbitration.
    pub qos: Qos,
    /// The largest code of virtual lanes that a port uses.
    pub most_vls: u8,
}

impl Default for Settings {
    /// Each service level has a lane of its own, as far as there are lanes, and all lanes have
    /// equal shares.
    fn default() -> Settings {
        let weights = (0..LANES).map(|vl| VlWeight { vl, weight: 64 }).collect();
        let sl_to_vl = std::array::from_fn(|sl| (sl as u8).min(LANES - 1));
        Settings { qos: Qos { sl_to_vl, high: Vec::new(), low: weights, high_limit: 0 }, most_vls: code_of(LANES) }
    }
}

/// Reads a file. What it does not say has its default.
///
/// # Errors
/// A setting is unknown or malformed.
pub fn parse(text: &str) -> Result<Settings, QosError> {
    let mut settings = Settings::default();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default().trim();
        if !content.is_empty() {
            set(&mut settings, content).map_err(|what| QosError { line, what })?;
        }
    }
    Ok(settings)
}

fn set(settings: &mut Settings, content: &str) -> Result<(), String> {
    let (name, value) = content.split_once(char::is_whitespace).ok_or("a setting has a name and a value")?;
    let qos = &mut settings.qos;
    match name.strip_prefix("qos_").unwrap_or(name) {
        "max_vls" => settings.most_vls = code_of(number(value, 1, LANES)?),
        "high_limit" => qos.high_limit = number(value, 0, u8::MAX)?,
        "sl2vl" => qos.sl_to_vl = lanes(value)?,
        "vlarb_high" => qos.high = weights(value)?,
        "vlarb_low" => qos.low = weights(value)?,
        _ => return Err(format!("{name} is no setting; they are max_vls, high_limit, sl2vl, vlarb_high, vlarb_low")),
    }
    Ok(())
}

/// The code of the most lanes that are no more than this.
fn code_of(lanes: u8) -> u8 {
    match lanes {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 3,
        8..=14 => 4,
        _ => 5,
    }
}

/// The lane of each service level. Lane 15 drops the packets of a service level.
fn lanes(value: &str) -> Result<[u8; 16], String> {
    let lanes = value.split(',').map(|lane| number(lane, 0, LANES)).collect::<Result<Vec<u8>, String>>()?;
    lanes
        .try_into()
        .map_err(|lanes: Vec<u8>| format!("sl2vl has {} lanes, and there are 16 service levels", lanes.len()))
}

fn weights(value: &str) -> Result<Vec<VlWeight>, String> {
    let one = |text: &str| {
        let (vl, weight) = text.split_once(':').ok_or_else(|| format!("{text:?} is no LANE:WEIGHT"))?;
        Ok(VlWeight { vl: number(vl, 0, LANES - 1)?, weight: number(weight, 0, u8::MAX)? })
    };
    let weights = value.split(',').map(one).collect::<Result<Vec<VlWeight>, String>>()?;
    if weights.len() <= MOST_WEIGHTS {
        Ok(weights)
    } else {
        Err(format!("{} entries; an arbitration table has up to {MOST_WEIGHTS}", weights.len()))
    }
}

fn number(text: &str, least: u8, most: u8) -> Result<u8, String> {
    let parsed = text.trim().parse().ok().filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| format!("{:?} is no number from {least} to {most}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_form_of_opensm() {
        let text = "qos_max_vls 8 # lanes 0 to 7\n\nhigh_limit 4\nqos_sl2vl 0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,15\n\
                    qos_vlarb_high 0:4\nvlarb_low 0:0,1:64, 2:128\n";
        let settings = parse(text).expect("good");
        let lanes = settings.qos.sl_to_vl;
        assert_eq!((settings.most_vls, settings.qos.high_limit, lanes[7], lanes[15]), (4, 4, 7, 15));
        assert_eq!(settings.qos.high, [VlWeight { vl: 0, weight: 4 }]);
        assert_eq!(settings.qos.low.last(), Some(&VlWeight { vl: 2, weight: 128 }));
        assert_eq!(parse("# nothing"), Ok(Settings::default()));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let long = format!("vlarb_low {}", vec!["0:1"; 65].join(","));
        for bad in ["qos_policy 1", "max_vls 16", "max_vls", "sl2vl 0,1", "vlarb_low 15:1", "vlarb_high 0", &long] {
            let error = parse(&format!("high_limit 1\n{bad}\n")).expect_err(bad);
            assert_eq!(error.line, 2, "{error}");
        }
    }
}
