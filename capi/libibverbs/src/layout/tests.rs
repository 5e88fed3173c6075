//! Compares the mirrors with facts measured from the public headers: `layout-v44.txt` (Debian 12's,
//! by DWARF) and `layout-v64.txt`.

use super::*;
use std::collections::HashMap;

/// What the `mirror!` macro records about a struct.
pub(crate) trait Mirror {
    /// The struct's name in `verbs.h`.
    const C_NAME: &'static str;
    /// Its size here.
    const SIZE: usize;
    /// Its fields here, with their offsets.
    const FIELDS: &'static [(&'static str, usize)];
}

/// One struct of a facts file: its size, and all offsets of each member name (names repeat inside
/// unions).
pub(crate) struct Fact {
    size: usize,
    offsets: HashMap<String, Vec<usize>>,
}

pub(crate) fn facts(text: &str) -> HashMap<String, Fact> {
    let mut all: HashMap<String, Fact> = HashMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, size)) = line.split_once(" size=") {
            current = name.to_owned();
            all.insert(current.clone(), Fact { size: size.trim().parse().unwrap(), offsets: HashMap::new() });
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(offset), Some(_size)) = (words.next().and_then(|word| word.parse().ok()), words.next()) else {
            continue;
        };
        let member = words.find(|word| *word != "}").unwrap_or_default();
        let member = member.trim_end_matches("()").split('[').next().unwrap_or_default();
        all.get_mut(&current).unwrap().offsets.entry(member.to_owned()).or_default().push(offset);
    }
    all
}

/// The C name of a field, which may differ from the Rust name.
fn c_field(field: &str) -> &str {
    if field == "kind" { "type" } else { field }
}

pub(crate) fn check<M: Mirror>(facts: &HashMap<String, Fact>, version: &str, grown: &[&str]) {
    let fact = facts.get(M::C_NAME).unwrap_or_else(|| panic!("{version} has no {}", M::C_NAME));
    if grown.contains(&M::C_NAME) {
        assert!(M::SIZE >= fact.size, "{version} {}", M::C_NAME);
        if M::C_NAME == "verbs_context" {
            return; // grew at its front: compared backwards from the context in `verbs_context_grew_at_its_front`
        }
    } else {
        assert_eq!(M::SIZE, fact.size, "{version} size of {}", M::C_NAME);
    }
    for (field, offset) in M::FIELDS {
        let Some(measured) = fact.offsets.get(c_field(field)) else {
            let renamed = field.starts_with("compat_")
                || field.starts_with("abi_placeholder")
                || field.starts_with("dummy")
                || matches!(*field, "ops" | "private" | "tail" | "element" | "wr" | "remote_srqn")
                || *offset >= fact.size;
            assert!(renamed, "{version} {}.{field} is not in the facts", M::C_NAME);
            continue;
        };
        assert!(measured.contains(offset), "{version} {}.{field}: {offset}, measured {measured:?}", M::C_NAME);
    }
}

fn check_all(facts: &HashMap<String, Fact>, version: &str, grown: &[&str]) {
    macro_rules! each {
        ($($name:ident),+ $(,)?) => { $(check::<$name>(facts, version, grown);)+ };
    }
    each!(
        Device,
        ContextOps,
        Context,
        VerbsContext,
        Pd,
        ValuesEx,
        Td,
        TdInitAttr,
        ParentDomainInitAttr,
        Xrcd,
        XrcdInitAttr,
        QpOpenAttr,
        Mr,
        Mw,
        Dm,
        AllocDmAttr,
        CompChannel,
        Cq,
        CqEx,
        Srq,
        Qp,
        QpEx,
        Ah,
        PollCqAttr,
        ModerateCq,
        ModifyCqAttr,
        CqInitAttrEx,
        SrqAttr,
        SrqInitAttr,
        SrqInitAttrEx,
        TmCap,
        QpCap,
        QpInitAttr,
        QpInitAttrEx,
        RxHashConf,
        GlobalRoute,
        AhAttr,
        QpAttr,
        Ece,
        QpRateLimitAttr,
        Grh,
        SaPathRec,
        GidEntry,
        DeviceAttr,
        OdpCaps,
        TsoCaps,
        RssCaps,
        PacketPacingCaps,
        TmCaps,
        CqModerationCaps,
        PciAtomicCaps,
        DeviceAttrEx,
        PortAttr,
        Sge,
        SendWr,
        RecvWr,
        Wc,
        MwBindInfo,
        MwBind,
        DataBuf,
        AsyncEvent,
    );
}

#[test]
fn layouts_are_those_of_v64() {
    let facts = facts(include_str!("../../layout-v64.txt"));
    check_all(&facts, "v64", &[]);
    check::<MrInitAttr>(&facts, "v64", &[]);
    check::<Dmah>(&facts, "v64", &[]);
    check::<DmahInitAttr>(&facts, "v64", &[]);
}

#[test]
fn layouts_serve_programs_built_with_v44() {
    check_all(&facts(include_str!("../../layout-v44.txt")), "v44", &["verbs_context", "ibv_qp_ex", "ibv_port_attr"]);
}

#[test]
fn verbs_context_grew_at_its_front() {
    let old = &facts(include_str!("../../layout-v44.txt"))["verbs_context"];
    let context_here = std::mem::offset_of!(VerbsContext, context);
    let context_then = old.offsets["context"][0];
    let mut compared = 0;
    for (field, offset) in VerbsContext::FIELDS {
        if let Some(then) = old.offsets.get(*field) {
            assert_eq!(context_here - offset, context_then - then[0], "{field} as seen from the context");
            compared += 1;
        }
    }
    assert!(compared > 30, "only {compared} fields compared");
}
