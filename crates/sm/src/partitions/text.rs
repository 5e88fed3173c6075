//! The file of partitions. A definition ends with `;`, and text after `#` is ignored. The function
//! is [`Partitions::parse`].

use super::{DEFAULT, Membership, Partition, Partitions, Who};
use crate::lids::number;

/// The longest file, in bytes.
const LONGEST: usize = 16 << 20;

/// Why a file of partitions is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    /// The line on which the definition begins, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl Partitions {
    /// Reads a file. A file without the default partition has all ports as its limited members, and
    /// the subnet manager as its full member.
    ///
    /// # Errors
    /// A definition is malformed.
    pub fn parse(text: &str) -> Result<Partitions, Malformed> {
        if text.len() > LONGEST {
            return Err(Malformed { line: 1, what: format!("the file has more than {LONGEST} bytes") });
        }
        let mut list: Vec<Partition> = Vec::new();
        for (line, definition) in definitions(text) {
            let partition = define(&definition, &list).map_err(|what| Malformed { line, what })?;
            match list.iter_mut().find(|other| other.pkey == partition.pkey) {
                Some(other) => other.members.extend(partition.members),
                None => list.push(partition),
            }
        }
        if list.iter().all(|partition| partition.pkey != DEFAULT) {
            let members = vec![(Who::All, Membership::Limited), (Who::Own, Membership::Full)];
            list.insert(0, Partition { name: "Default".into(), pkey: DEFAULT, members, ..Partition::default() });
        }
        Ok(Partitions { list })
    }
}

/// The definitions with the lines on which they begin, without comments.
fn definitions(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut start, mut open) = (1, String::new());
    for (nth, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default();
        for (part, piece) in content.split(';').enumerate() {
            if part > 0 {
                found.push((start, std::mem::take(&mut open)));
            }
            if open.trim().is_empty() {
                start = nth + 1;
            }
            open.push_str(piece);
            open.push(' ');
        }
    }
    found.push((start, open));
    found.retain(|(_, definition)| !definition.trim().is_empty());
    found
}

fn define(definition: &str, before: &[Partition]) -> Result<Partition, String> {
    let (head, members) =
        definition.split_once(':').ok_or("a definition needs ':' between its flags and its members")?;
    let mut words = head.split(',').map(str::trim);
    let first = words.next().unwrap_or_default();
    let (name, pkey) = first.split_once('=').map_or((first, None), |(name, key)| (name.trim(), Some(key.trim())));
    let pkey = match pkey {
        Some(key) => {
            let key = number(key).and_then(|key| u16::try_from(key).ok()).map(|key| key & DEFAULT);
            key.filter(|key| *key != 0).ok_or(format!("\"{first}\" needs a P_Key from 0x0001 to 0x7fff"))?
        }
        None if name == "Default" => DEFAULT,
        None => free(before).ok_or("no P_Key is left")?,
    };
    let mut partition = Partition { name: name.into(), pkey, ..Partition::default() };
    let mut usual = Membership::Limited;
    for word in words.filter(|word| !word.is_empty()) {
        flag(word, &mut partition, &mut usual)?;
    }
    for word in members.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        partition.members.push(member(word, usual)?);
    }
    Ok(partition)
}

/// A P_Key that no partition has.
fn free(before: &[Partition]) -> Option<u16> {
    (1..DEFAULT).find(|key| before.iter().all(|partition| partition.pkey != *key))
}

fn flag(word: &str, partition: &mut Partition, usual: &mut Membership) -> Result<(), String> {
    let (name, value) = word.split_once('=').map_or((word, ""), |(name, value)| (name.trim(), value.trim()));
    let code = |most: u64| {
        let code = number(value).filter(|code| *code <= most).and_then(|code| u8::try_from(code).ok());
        code.map(Some).ok_or(format!("\"{word}\" needs a number up to {most}"))
    };
    match name {
        "ipoib" => partition.ipoib = true,
        "mtu" => partition.mtu = code(5)?,
        "rate" => partition.rate = code(63)?,
        "sl" => partition.sl = code(15)?,
        "scope" => partition.scope = code(15)?,
        "defmember" => *usual = membership(value).ok_or(format!("\"{word}\" needs full, limited or both"))?,
        // Index 0 is for the default partition.
        "indx0" => return Err("indx0 is not supported; remove it".into()),
        _ => return Err(format!("\"{word}\" is not a flag; use ipoib, mtu, rate, sl, scope or defmember")),
    }
    Ok(())
}

fn membership(word: &str) -> Option<Membership> {
    match word {
        "full" => Some(Membership::Full),
        "limited" => Some(Membership::Limited),
        "both" => Some(Membership::Both),
        _ => None,
    }
}

fn member(word: &str, usual: Membership) -> Result<(Who, Membership), String> {
    let (who, how) = word.split_once('=').map_or((word, None), |(who, how)| (who.trim(), Some(how.trim())));
    let how = match how {
        Some(how) => membership(how).ok_or(format!("\"{word}\" needs full, limited or both"))?,
        None => usual,
    };
    let who = match who {
        "ALL" => Who::All,
        "ALL_CAS" => Who::Adapters,
        "ALL_SWITCHES" => Who::Switches,
        "ALL_ROUTERS" => Who::Routers,
        "SELF" => Who::Own,
        guid => Who::Guid(number(guid).filter(|guid| *guid != 0).ok_or(format!(
            "\"{guid}\" is not a port GUID; use one, or ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS or SELF"
        ))?),
    };
    Ok((who, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_opensm_is_read() {
        let text = "# all\nDefault=0x7fff, ipoib, sl=3 : ALL=full, SELF=full ;\n\
                    storage=0x8010, defmember=full, mtu=4 :\n 0x11, 0x12=limited; : 0x13 ;";
        let list = Partitions::parse(text).unwrap().list;
        assert_eq!((list[0].pkey, list[0].ipoib, list[0].sl), (0x7fff, true, Some(3)));
        assert_eq!((&list[1].name[..], list[1].pkey, list[1].mtu), ("storage", 0x10, Some(4)));
        let members = [(Who::Guid(0x11), Membership::Full), (Who::Guid(0x12), Membership::Limited)];
        assert_eq!(list[1].members, members);
        assert_eq!((list[2].pkey, &list[2].name[..]), (1, ""), "a key is chosen");
        let without = Partitions::parse("a=5 : ALL ;").unwrap().list;
        assert_eq!((without[0].pkey, without[0].members[0]), (0x7fff, (Who::All, Membership::Limited)));
    }

    #[test]
    fn errors_name_the_line_and_the_word() {
        for (text, line, what) in [
            ("\nDefault ALL ;", 2, "':'"),
            ("a=0x8000 : ALL ;", 1, "P_Key"),
            ("a=1, colour=3 : ALL ;", 1, "colour=3"),
            ("a=1 : ALL ;\n b=2 : EVERY ;", 2, "EVERY"),
            ("a=1, sl=16 : ALL ;", 1, "sl=16"),
            ("a=1 : 0x5=half ;", 1, "half"),
        ] {
            let error = Partitions::parse(text).unwrap_err();
            assert!(error.line == line && error.what.contains(what), "{error}");
        }
    }
}
