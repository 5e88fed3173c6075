//! Adds, lists and clears rules: the `fault` request of the admin node, and the rules that a
//! program brings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::fault::{Armed, FaultKind, Rule, Sort, parse_all};
use serde_json::{Value, json};

use super::publish::{counts, is_behind};
use super::{Entry, RULES_MAX, Removal, Scope, USER_OWN_MAX};
use crate::asker::Asker;
use crate::ids::ContextId;
use crate::shares;
use crate::world::World;

/// Answers a `fault` request. The second value says whether ports have changed.
pub(crate) fn answer(world: &mut World, asker: Asker, question: &Value) -> (Value, bool) {
    let done = match question["do"].as_str() {
        Some("add") => {
            let text = question["rules"].as_str().unwrap_or_default();
            let scope = match asker {
                Asker::Root => Scope::All,
                Asker::User(uid) => Scope::User(uid),
            };
            world.add_faults(scope, text).map(|(ids, changed)| (json!({"added": ids}), changed))
        }
        Some("clear") => {
            let ids = question["ids"].as_array().map(|ids| ids.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
            world.clear_faults(asker, ids.as_deref()).map(|(ids, changed)| (json!({"cleared": ids}), changed))
        }
        Some("list") | None => return (world.list_faults(asker), false),
        Some(other) => Err(format!("{other:?} cannot be done with faults; there are add, list and clear")),
    };
    done.unwrap_or_else(|why| (json!({ "error": why }), false))
}

impl World {
    /// The entry of a new rule. Rules about ports and devices act at once; the flag says whether a
    /// port has changed.
    fn fault_entry(&mut self, (id, scope): (u32, Scope), rule: &Rule, device: Option<usize>) -> (Entry, bool) {
        let armed = Armed::new(id, resolved(rule, device));
        let mut entry = Entry { armed, scope, device, port: None, until: None, counted: (0, 0) };
        let mut has_changed = false;
        match rule.kind {
            FaultKind::PortDown { lasts } => {
                entry.until = (lasts > 0).then(|| Instant::now() + Duration::from_nanos(lasts));
                entry.counted = (1, 1);
                // A link goes down in the fabric, and its ports with it.
                if rule.select.link.is_none() {
                    let (device, port) = (device.unwrap_or(0), rule.select.port.unwrap_or(1));
                    entry.port = Some((device, port));
                    has_changed = self.set_port(device, port, false);
                }
            }
            FaultKind::Remove => entry.counted = self.remove_for(&entry),
            _ => {}
        }
        (entry, has_changed)
    }

    /// Adds all rules of a text, or none. Returns their numbers, and whether ports have changed.
    pub(crate) fn add_faults(&mut self, scope: Scope, text: &str) -> Result<(Vec<u32>, bool), String> {
        let rules = parse_all(text).map_err(|error| error.to_string())?;
        if rules.is_empty() {
            return Err("it has no rule".to_owned());
        }
        let mut places = Vec::new();
        for rule in &rules {
            places.push(self.check_fault(scope, rule)?);
        }
        let own = match scope {
            Scope::Own(id) => Some(id),
            Scope::All | Scope::User(_) => None,
        };
        let faults = Arc::clone(&self.faults);
        let (mut ids, mut changed) = (Vec::new(), false);
        {
            let mut book = faults.book.lock();
            let there = own.map_or(book.entries.len(), |id| book.own(id).count());
            if there + rules.len() > RULES_MAX {
                return Err(format!("the limit of {RULES_MAX} rules is reached: there are {there}; clear some"));
            }
            if let Some(context) = own.and_then(|id| self.contexts.get(&id)).filter(|_| self.users.apart) {
                let uid = context.peer.uid;
                let brought: usize = shares::of(self, uid).map(|id| book.own(id).count()).sum();
                if brought + rules.len() > USER_OWN_MAX {
                    return Err(format!("programs of user {uid} have {brought} rules; the limit is {USER_OWN_MAX}"));
                }
            }
            for (rule, device) in rules.into_iter().zip(places) {
                let id = book.next_id(own);
                tracing::warn!(target: "softhca::fault", "rule {id}: {rule}");
                let (entry, has_changed) = self.fault_entry((id, scope), &rule, device);
                changed |= has_changed;
                match own {
                    Some(context) => book.own.entry(context).or_default().push(entry),
                    None => book.entries.push(entry),
                }
                ids.push(id);
            }
        }
        match own {
            Some(id) => self.publish_faults_to(&[id]),
            None => self.publish_faults(),
        }
        Ok((ids, changed))
    }

    /// Checks that a rule may be added. Returns the device that it is for.
    fn check_fault(&self, scope: Scope, rule: &Rule) -> Result<Option<usize>, String> {
        let device = match &rule.select.device {
            None => None,
            Some(name) => {
                let known = self.devices.named(name).or_else(|| self.devices.get(name.parse().ok()?));
                let known = known.map(|device| device.index);
                let names = || self.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
                Some(known.ok_or_else(|| format!("device: there is no {name:?}; devices are {}", names()))?)
            }
        };
        if rule.select.opcode == Some(Sort::Cm) && scope != Scope::All {
            return Err(
                "opcode cm: connection manager datagrams are the agent's; only root and the agent's own user may add \
                        this rule, with `softhca fault add`"
                    .into(),
            );
        }
        if let Some(link) = &rule.select.link {
            match &self.faults.book.lock().cables {
                None => {
                    return Err(format!(
                        "link {link}: the agent has no topology; start one with `softhca agent --topology FILE`, or use \
                         the keys device and port"
                    ));
                }
                Some(cables) if !cables.contains(&(link.node.clone(), link.port)) => {
                    return Err(format!("link {link}: there is no cable; `softhca subnet` lists the links"));
                }
                Some(_) => {}
            }
        }
        match rule.kind {
            FaultKind::PortDown { .. } | FaultKind::Remove if matches!(scope, Scope::Own(_)) => {
                Err(format!("{}: this is for `softhca fault add`, not for the rules of one program", rule.kind))
            }
            FaultKind::PortDown { .. } if scope != Scope::All => {
                Err("port-down: other users' programs have the port as well; only root and the agent's own user may"
                    .into())
            }
            FaultKind::PortDown { .. } if rule.select.link.is_some() => Ok(None),
            FaultKind::PortDown { .. } => {
                let ports = self.devices.get(device.unwrap_or(0)).map_or(0, |device| device.ports.len());
                let port = rule.select.port.unwrap_or(1);
                let there = (1..=ports).contains(&(port as usize));
                if there { Ok(device) } else { Err(format!("port: there is no port {port}; the device has {ports}")) }
            }
            _ => Ok(device),
        }
    }

    /// Removes the device from the programs that a rule touches. Returns from how many.
    fn remove_for(&mut self, entry: &Entry) -> (u64, u64) {
        let (scope, device, pid) = (entry.scope, entry.device, entry.rule().select.pid);
        self.faults.removals.lock().push(Removal { scope, device, pid });
        let touched: Vec<ContextId> =
            self.contexts.values().filter(|context| entry.touches(context)).map(|context| context.id).collect();
        let removed = self.take_from(&touched);
        (removed, removed)
    }

    /// Clears the rules that are for one device only, because it is removed.
    pub(crate) fn clear_faults_of(&mut self, device: usize) {
        let faults = Arc::clone(&self.faults);
        let ids: Vec<u64> = {
            let book = faults.book.lock();
            let entries = book.entries.iter().chain(book.own.values().flatten());
            entries.filter(|entry| entry.device == Some(device)).map(|entry| entry.armed.id.into()).collect()
        };
        if !ids.is_empty() {
            // The rules are there.
            let _ = self.clear_faults(Asker::Root, Some(&ids));
        }
    }

    /// Clears the rules with these numbers, or all rules without numbers. Returns their numbers,
    /// and whether ports have changed.
    fn clear_faults(&mut self, asker: Asker, ids: Option<&[u64]>) -> Result<(Vec<u32>, bool), String> {
        let faults = Arc::clone(&self.faults);
        let mut changed = false;
        let mut cleared = Vec::new();
        {
            let mut book = faults.book.lock();
            if let Some(missing) = ids.into_iter().flatten().find(|id| {
                let is_it = |entry: &Entry| u64::from(entry.armed.id) == **id && may_clear(asker, entry.scope);
                !book.entries.iter().chain(book.own.values().flatten()).any(is_it)
            }) {
                return Err(format!("you have no rule {missing}; `softhca fault list` shows your rules"));
            }
            let named = |entry: &Entry| ids.is_some_and(|ids| ids.contains(&entry.armed.id.into()));
            let goes = |entry: &Entry| (ids.is_none() || named(entry)) && may_clear(asker, entry.scope);
            let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut book.entries).into_iter().partition(goes);
            book.entries = kept;
            // A program's own rules are cleared only by their numbers.
            if ids.is_some() && asker == Asker::Root {
                book.own.retain(|_, entries| {
                    entries.retain(|entry| {
                        let goes = named(entry);
                        cleared.extend(goes.then_some(entry.armed.id));
                        !goes
                    });
                    !entries.is_empty()
                });
            }
            for entry in gone {
                cleared.push(entry.armed.id);
                if let Some((device, port)) = entry.port {
                    let still = book.entries.iter().any(|other| other.port == Some((device, port)));
                    changed |= !still && self.set_port(device, port, true);
                }
            }
        }
        self.publish_faults();
        Ok((cleared, changed))
    }

    /// Brings up the ports whose time has expired. Returns whether there were any.
    pub(crate) fn end_faults(&mut self) -> bool {
        if self.faults.next_time().is_none_or(|left| !left.is_zero()) {
            return false;
        }
        let now = Instant::now();
        let over = |entry: &Entry| entry.until.is_some_and(|until| until <= now);
        let ids: Vec<u64> = self
            .faults
            .book
            .lock()
            .entries
            .iter()
            .filter(|entry| over(entry))
            .map(|entry| entry.armed.id.into())
            .collect();
        self.clear_faults(Asker::Root, Some(&ids)).is_ok_and(|(_, changed)| changed)
    }

    fn list_faults(&self, asker: Asker) -> Value {
        let book = self.faults.book.lock();
        let touched = |entry: &Entry| match entry.scope {
            Scope::Own(id) => {
                self.contexts.get(&id).map(|context| counts(context, entry.armed.id)).into_iter().collect()
            }
            _ => {
                let contexts = self.contexts.values().filter(|context| entry.touches(context));
                contexts.map(|context| counts(context, entry.armed.id)).collect::<Vec<_>>()
            }
        };
        let all = book.entries.iter().chain(book.own.values().flatten());
        let rows = all.filter(|entry| may_see(self, asker, entry.scope)).map(|entry| {
            let (mut seen, mut acted) = entry.armed.counts();
            seen += entry.counted.0;
            acted += entry.counted.1;
            for more in touched(entry) {
                seen += more.0;
                acted += more.1;
            }
            let program = match entry.scope {
                Scope::Own(id) => self.contexts.get(&id),
                _ => None,
            };
            let scope = match (entry.scope, program) {
                (Scope::All, _) => "all programs".to_owned(),
                (Scope::User(uid), _) => format!("user {uid}"),
                (Scope::Own(_), Some(context)) => format!("{} {}", context.peer.pid, context.peer.comm),
                (Scope::Own(_), None) => "a program".to_owned(),
            };
            json!({
                "id": entry.armed.id, "rule": entry.rule().to_string(), "scope": scope,
                "pid": program.map(|context| context.peer.pid), "seen": seen, "acted": acted,
            })
        });
        let mut rows: Vec<Value> = rows.collect();
        rows.sort_by_key(|row| row["id"].as_u64());
        let pending = self.contexts.values().filter(|context| is_behind(context)).count();
        json!({"rules": rows, "pending": pending, "ended": book.ended.show(asker)})
    }

    /// Adds the rules that the program of a context brings.
    pub(crate) fn bring_faults(&mut self, id: ContextId, is_toml: bool) -> Result<(), String> {
        let Some(text) = self.wanted_faults(id) else { return Err("the rules are no text".to_owned()) };
        let text = if is_toml { super::rules_of(&text)? } else { text };
        self.add_faults(Scope::Own(id), &text).map(drop)
    }
}

fn resolved(rule: &Rule, device: Option<usize>) -> Rule {
    let mut rule = rule.clone();
    rule.select.device = device.map(|device| device.to_string());
    rule
}

fn may_clear(asker: Asker, scope: Scope) -> bool {
    match (asker, scope) {
        (Asker::Root, _) => true,
        (Asker::User(asker), Scope::User(uid)) => asker == uid,
        _ => false,
    }
}

fn may_see(world: &World, asker: Asker, scope: Scope) -> bool {
    match (asker, scope) {
        (Asker::Root, _) | (_, Scope::All) => true,
        (Asker::User(asker), Scope::User(uid)) => asker == uid,
        (asker, Scope::Own(id)) => world.contexts.get(&id).is_some_and(|context| asker.may_see(context.peer.uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::fault::text::command_name;

    use crate::config::Config;
    use crate::ids::Peer;

    /// A program's own rules cause no work for other programs. The programs of one user may bring a
    /// bounded number of rules.
    #[test]
    fn own_rules_are_bounded_for_each_user_and_go_with_their_program() {
        let mut world = World::new(&Config { system: true, ..Config::default() }, "a test").expect("a world");
        world.users.contexts = 1000;
        let mut open = |uid: u32| {
            let peer = Peer { pid: 1, uid, comm: String::new() };
            world.open(0, abi::open::profile::MAINLINE, peer).expect("opened")
        };
        let programs: Vec<ContextId> = (0..USER_OWN_MAX / RULES_MAX + 1).map(|_| open(7)).collect();
        let other = open(8);
        let text = vec!["fail create_qp ENOMEM"; RULES_MAX].join("\n");
        let (last, first) = programs.split_last().expect("some");
        for id in first {
            world.add_faults(Scope::Own(*id), &text).expect("room");
        }
        let why = world.add_faults(Scope::Own(*last), &text).expect_err("too many");
        assert!(why.contains("user 7"), "{why}");
        world.add_faults(Scope::Own(other), &text).expect("another user has room");
        let looked_at = world.faults.book.lock().about(other).count();
        assert_eq!(looked_at, RULES_MAX);
        world.close(first[0]);
        world.add_faults(Scope::Own(*last), &text).expect("room again");
        let listed = |asker| world.list_faults(asker)["rules"].as_array().map_or(0, Vec::len);
        assert_eq!((listed(Asker::User(7)), listed(Asker::User(8))), (USER_OWN_MAX, RULES_MAX));
    }

    /// `softhca run` prints the counts of these rules after its program has ended.
    #[test]
    fn counts_of_own_rules_outlive_their_program() {
        let mut world = World::new(&Config { system: true, ..Config::default() }, "a test").expect("a world");
        let peer = Peer { pid: 9, uid: 7, comm: String::new() };
        let id = world.open(0, abi::open::profile::MAINLINE, peer).expect("opened");
        world.add_faults(Scope::Own(id), "fail create_qp ENOMEM; loss").expect("rules");
        let row = abi::command::ROWS.iter().find(|row| command_name(row.name) == "create_qp").expect("a command");
        world.faults.check_command(&world.contexts[&id], row).expect_err("the rule makes it fail");
        world.close(id);
        let listed = world.list_faults(Asker::User(7));
        assert_eq!(listed["rules"], json!([]));
        let expected = json!([{"id": 1, "rule": "fail create_qp ENOMEM", "pid": 9, "seen": 1, "acted": 1}]);
        assert_eq!(listed["ended"], expected);
        assert_eq!(world.list_faults(Asker::User(8))["ended"], json!([]));
    }

    #[test]
    fn rules_about_management_datagrams_are_for_all_programs() {
        let mut world = World::new(&Config { system: true, ..Config::default() }, "a test").expect("a world");
        let peer = Peer { pid: 1, uid: 7, comm: String::new() };
        let id = world.open(0, abi::open::profile::MAINLINE, peer).expect("opened");
        for scope in [Scope::Own(id), Scope::User(7)] {
            let why = world.add_faults(scope, "loss opcode cm").expect_err("it could never act");
            assert!(why.contains("opcode cm: connection manager datagrams"), "{why}");
        }
        world.add_faults(Scope::All, "loss opcode cm").expect("a rule");
    }
}
