//! The floors inside the engine: a module imports only from its own floor and from lower floors.
//! ARCHITECTURE.md explains them.
//!
//! The principal function is [`check`].

use std::collections::{BTreeMap, BTreeSet};

/// A floor: its name, and the modules on it. A module without an entry is where its parent is.
type Floor = (&'static str, &'static [&'static str]);

/// The floors of `softhca-engine`, the lowest first.
pub(super) const ENGINE: &[Floor] = &[
    (
        "tools",
        &[
            "capture",
            "clock",
            "control",
            "error",
            "idle",
            "lock",
            "log",
            "memory",
            "network",
            "pollers",
            "post_error",
            "progress_mode",
            "reason",
            "request",
            "rundir",
            "simulated",
            "special",
            "stall",
            "table",
            "traffic",
            "tsc",
            "usermem",
            "watchdog",
            "why",
        ],
    ),
    (
        "core",
        &[
            "access",
            "board",
            "budget",
            "cell",
            "core",
            "event",
            "event_file",
            "extent",
            "grant_table",
            "helper",
            "kept",
            "keys",
            "lid",
            "lint",
            "queue_use",
            "srq_request",
            "untold",
            "window",
        ],
    ),
    ("resources", &["advice", "ah", "channel", "dm", "import", "mr", "mw", "parent", "pd"]),
    (
        "paths",
        &[
            "direct",
            "drops",
            "faults",
            "flows",
            "lane",
            "mcast",
            "moderation",
            "net",
            "out_of_order",
            "pace",
            "paths",
            "remote_srq",
            "rnr_grace",
            "stream::endings",
            "stream::gate",
            "stream::output",
            "stream::part",
            "stream::sockets",
        ],
    ),
    ("objects", &["cq", "engine", "qp", "srq", "xrc"]),
    (
        "actions",
        &[
            "addressing",
            "adopt",
            "arrived",
            "async_modify",
            "capture::copies",
            "datagram",
            "direct::at_once",
            "direct::carry",
            "direct::granting",
            "drops::dropping",
            "ece",
            "expected",
            "faults::delayed_packets::sending",
            "faults::lossy",
            "faults::packets",
            "faults::rules",
            "lint::attributes",
            "lint::buffers",
            "lint::changed",
            "lint::conduct",
            "lint::receives",
            "lint::sends",
            "local_requests",
            "mcast::members",
            "migration",
            "moderation::periods",
            "net::congestion",
            "net::connection",
            "net::delayed_ack",
            "net::deliver",
            "net::expected",
            "net::flow::finding",
            "net::inbox::receiving",
            "net::scheduler::quanta",
            "noticed",
            "out_of_order::keeping",
            "pace::sends",
            "partition",
            "paths::asking",
            "paths::passing",
            "progress_mode::polls",
            "proxy",
            "put",
            "receive",
            "remote_srq::requests",
            "rnr_grace::serving",
            "route",
            "send",
            "state",
            "stream",
            "target",
            "transmit",
            "violations",
            "why::sentences",
        ],
    ),
    ("work", &["helper::thread", "progress", "step"]),
];

/// Checks what each module imports. Returns a sentence for each import that goes upward, for each
/// module without a floor, and for each entry without a module. The root, which names its modules,
/// is on no floor.
pub(super) fn check(floors: &[Floor], imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let place = |module: &str| {
        let mut name = Some(module);
        while let Some(at) = name {
            if let Some(floor) = floors.iter().position(|(_, modules)| modules.contains(&at)) {
                return Some(floor);
            }
            name = at.rsplit_once("::").map(|(parent, _)| parent);
        }
        None
    };
    let mut wrong = Vec::new();
    for (module, imported) in imports.iter().filter(|(module, _)| !module.is_empty()) {
        let Some(own) = place(module) else {
            wrong.push(format!("the module {module} has no floor (xtask/src/tidy/module_floors.rs)"));
            continue;
        };
        for (other, floor) in imported.iter().filter_map(|other| Some((other, place(other)?))) {
            if floor > own {
                let (own, floor) = (floors[own].0, floors[floor].0);
                wrong.push(format!("the module {module} ({own}) imports {other}, which is higher ({floor})"));
            }
        }
    }
    let entries = floors.iter().flat_map(|(_, modules)| *modules);
    let missing = entries.filter(|entry| !imports.contains_key(**entry));
    wrong.extend(missing.map(|entry| format!("there is no module {entry} (xtask/src/tidy/module_floors.rs)")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOORS: &[Floor] = &[("low", &["a"]), ("high", &["a::top", "b"])];

    fn wrong(imports: &[(&str, &[&str])]) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        check(FLOORS, &imports.iter().map(|(module, imported)| ((*module).to_owned(), names(imported))).collect())
    }

    #[test]
    fn imports_go_downward() {
        let whole: &[(&str, &[&str])] =
            &[("", &["a", "b"]), ("a", &["a::part"]), ("a::part", &["a"]), ("a::top", &["b"]), ("b", &["a", "a::top"])];
        assert!(wrong(whole).is_empty());
        let upward = |module| wrong(&[("a", &[]), ("a::top", &[]), ("b", &[]), (module, &["a::top"])]);
        assert_eq!(upward("a"), ["the module a (low) imports a::top, which is higher (high)"]);
        assert_eq!(upward("a::part"), ["the module a::part (low) imports a::top, which is higher (high)"]);
        assert!(upward("b").is_empty());
    }

    #[test]
    fn each_module_has_a_floor_and_each_entry_a_module() {
        let found = wrong(&[("a", &[]), ("a::top", &[]), ("c", &[])]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("the module c has no floor"), "{found:?}");
        assert!(found[1].starts_with("there is no module b"), "{found:?}");
    }
}
