//! The file of partitions. A definition ends with `;`, and text after `#` is ignored. A multicast
//! group ends with its line. The function is [`Partitions::parse`].

use super::group::is_of_ip;
use super::{DEFAULT, FULL, Membership, Partition, PartitionGroup, Partitions, Shared, Who};
use crate::lids::number;
use std::net::Ipv6Addr;

/// The longest file, in bytes.
const LONGEST: usize = 16 << 20;

/// Why a file of partitions is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct PartitionsError {
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
    pub fn parse(text: &str) -> Result<Partitions, PartitionsError> {
        if text.len() > LONGEST {
            return Err(PartitionsError { line: 1, what: format!("the file has more than {LONGEST} bytes") });
        }
        let mut list: Vec<Partition> = Vec::new();
        for (line, definition) in definitions(text) {
            let partition = define(&definition, &list).map_err(|what| PartitionsError { line, what })?;
            match list.iter_mut().find(|other| other.pkey == partition.pkey) {
                Some(other) => {
                    other.members.extend(partition.members);
                    other.groups.extend(partition.groups);
                    other.index0 |= partition.index0;
                    if partition.ipoib {
                        (other.ipoib, other.shared) = (true, partition.shared);
                    }
                }
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
            open.push('\n');
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
    let mut ports = String::new();
    for line in members.lines() {
        let (before, group) = line.split_at(line.find("mgid").unwrap_or(line.len()));
        ports.push_str(before);
        ports.push(' ');
        if !group.is_empty() {
            partition.groups.push(multicast(group, &partition)?);
            ports.push(',');
        }
    }
    for word in ports.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        partition.members.push(member(word, usual)?);
    }
    Ok(partition)
}

/// A P_Key that no partition has.
fn free(before: &[Partition]) -> Option<u16> {
    (1..DEFAULT).find(|key| before.iter().all(|partition| partition.pkey != *key))
}

fn flag(word: &str, partition: &mut Partition, usual: &mut Membership) -> Result<(), String> {
    let (name, value) = halves(word);
    match name {
        "ipoib" => partition.ipoib = true,
        "indx0" => partition.index0 = true,
        "defmember" => *usual = membership(value).ok_or(format!("\"{word}\" needs full, limited or both"))?,
        _ if shared(name, value, &mut partition.shared)? => {}
        _ => return Err(format!("\"{word}\" is not a flag; use ipoib, indx0, defmember, {SHARED}")),
    }
    Ok(())
}

/// The flags of groups.
const SHARED: &str = "mtu, rate, sl, scope, Q_Key, TClass or FlowLabel";

/// A flag that the members of a group share. Returns false if it is another one.
fn shared(name: &str, value: &str, shared: &mut Shared) -> Result<bool, String> {
    let up_to = |most: u64| {
        number(value).filter(|code| *code <= most).ok_or(format!("\"{name}={value}\" needs a number up to {most}"))
    };
    let code = |most: u8| up_to(most.into()).map(|code| Some(code as u8));
    match name {
        "mtu" => shared.mtu = code(5)?,
        "rate" => shared.rate = code(63)?,
        "sl" => shared.sl = code(15)?,
        "scope" => shared.scopes |= 1 << up_to(15)?,
        "Q_Key" => shared.qkey = Some(up_to(u32::MAX.into())? as u32),
        "TClass" => shared.traffic_class = up_to(255)? as u8,
        "FlowLabel" => shared.flow_label = up_to(0xf_ffff)? as u32,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A group: `mgid=GID` and its flags. Those that it does not name are the partition's.
fn multicast(text: &str, partition: &Partition) -> Result<PartitionGroup, String> {
    let mut words = text.split(',').map(str::trim);
    let first = words.next().unwrap_or_default();
    let mgid = halves(first).1.parse().map(|gid: Ipv6Addr| gid.octets());
    let mut mgid = mgid.ok().filter(|mgid| mgid[0] == 0xff).ok_or(format!("\"{first}\" is not a multicast GID"))?;
    let mut own = Shared { scopes: 0, ..partition.shared };
    for word in words.filter(|word| !word.is_empty()) {
        let (name, value) = halves(word);
        if !shared(name, value, &mut own)? {
            return Err(format!("\"{word}\" is not a flag of a group; use {SHARED}"));
        }
    }
    if own.scopes == 0 {
        own.scopes = if partition.shared.scopes == 0 { 1 << (mgid[1] & 0xf) & !1 } else { partition.shared.scopes };
    }
    if is_of_ip(&mgid) {
        let pkey = (partition.pkey | FULL).to_be_bytes();
        if (own.mtu, own.rate) != (partition.shared.mtu, partition.shared.rate) {
            return Err(format!("\"{text}\" needs the mtu and rate of the partition's broadcast group"));
        }
        if mgid[4..6] != [0; 2] && mgid[4..6] != pkey {
            return Err(format!("\"{first}\" has another P_Key; leave it 0"));
        }
        mgid[4..6].copy_from_slice(&pkey);
    }
    Ok(PartitionGroup { mgid, shared: own })
}

fn halves(word: &str) -> (&str, &str) {
    word.split_once('=').map_or((word, ""), |(name, value)| (name.trim(), value.trim()))
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
    use wire::sa::McMemberRecord;

    #[test]
    fn the_form_of_opensm_is_read() {
        let text = "# all\nDefault=0x7fff, ipoib, sl=3 : ALL=full, SELF=full ;\n\
                    storage=0x8010, defmember=full, mtu=4 :\n 0x11, 0x12=limited; : 0x13 ;";
        let list = Partitions::parse(text).unwrap().list;
        assert_eq!((list[0].pkey, list[0].ipoib, list[0].shared.sl), (0x7fff, true, Some(3)));
        assert_eq!((&list[1].name[..], list[1].pkey, list[1].shared.mtu), ("storage", 0x10, Some(4)));
        let members = [(Who::Guid(0x11), Membership::Full), (Who::Guid(0x12), Membership::Limited)];
        assert_eq!(list[1].members, members);
        assert_eq!((list[2].pkey, &list[2].name[..]), (1, ""), "a key is chosen");
        let without = Partitions::parse("a=5 : ALL ;").unwrap().list;
        assert_eq!((without[0].pkey, without[0].members[0]), (0x7fff, (Who::All, Membership::Limited)));
    }

    #[test]
    fn groups_end_with_their_line_and_inherit_flags() {
        let text = "ips=0x20, indx0, ipoib, rate=7, scope=2, scope=5 :\n mgid=ff12:401b::707, sl=1 # IPv4\n\
                    ALL=full, mgid=ff15::1,Q_Key=0xDEADBEEF,rate=3,mtu=2,scope=14,TClass=9\n 0x9, 0x8 ;";
        let list = Partitions::parse(text).unwrap().list;
        let [_, ips] = &list[..] else { panic!("the default partition, and this one") };
        assert_eq!((ips.index0, ips.members.len(), ips.groups.len()), (true, 3, 2));
        let shown = |record: &McMemberRecord| {
            let gid = Ipv6Addr::from(record.mgid).to_string();
            (gid, record.qkey, record.mtu, record.rate, record.sl, record.hop_limit)
        };
        let records: Vec<_> = ips.records().iter().map(shown).collect();
        let expected = [
            ("ff12:401b:8020::ffff:ffff", 0x0b1b, 4, 7, 0, 0),
            ("ff15:401b:8020::ffff:ffff", 0x0b1b, 4, 7, 0, 255),
            ("ff12:401b:8020::707", 0x0b1b, 4, 7, 1, 0),
            ("ff15:401b:8020::707", 0x0b1b, 4, 7, 1, 255),
            ("ff1e::1", 0xdead_beef, 2, 3, 0, 255),
        ];
        let expected = expected.map(|(gid, qkey, mtu, rate, sl, hops)| (gid.to_owned(), qkey, mtu, rate, sl, hops));
        assert_eq!(records, expected);
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
            ("a=1 :\n mgid=fe80::1\n ALL ;", 1, "multicast"),
            ("a=1, ipoib, mtu=4 :\n mgid=ff12:401b::7,mtu=2\n ALL ;", 1, "broadcast group"),
        ] {
            let error = Partitions::parse(text).unwrap_err();
            assert!(error.line == line && error.what.contains(what), "{error}");
        }
    }
}
