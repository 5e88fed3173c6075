//! The check of `softhca doctor` for addresses that ports of several agents of a subnet name. The
//! agent finds them. The function is [`conflicts`].

use serde_json::Value;

use crate::finding::Finding;
use crate::ready::Surroundings;

/// How many addresses are named. `softhca subnet` lists all of them.
const NAMED: usize = 3;

/// Whether ports of the subnet have addresses of their own; nothing without a topology.
pub(super) fn conflicts(surroundings: &Surroundings<'_>) -> Option<Finding> {
    let answer = surroundings.agent.as_ref()?.ask("subnet").ok()?;
    Some(finding(answer["conflicts"].as_array().map_or(&[], Vec::as_slice)))
}

fn finding(conflicts: &[Value]) -> Finding {
    const WHAT: &str = "addresses";
    if conflicts.is_empty() {
        return Finding::ok(WHAT, "no two ports of the subnet have the same IP address or GID");
    }
    let mut named: Vec<String> = conflicts.iter().take(NAMED).map(in_words).collect();
    if conflicts.len() > NAMED {
        named.push(format!("and {} more", conflicts.len() - NAMED));
    }
    let next =
        "give each adapter an address of its own in the files of the agents; `softhca subnet` lists all conflicts";
    Finding::warn(WHAT, named.join("; "), next)
}

/// A conflict as `softhca subnet` tells it.
pub(crate) fn in_words(conflict: &Value) -> String {
    let word = |name: &str| conflict[name].as_str().unwrap_or_default();
    let kind = if conflict["ip"].is_string() { ("IP address", "ip") } else { ("GID", "gid") };
    format!("{} {} belongs to {}, and {} names it too", kind.0, word(kind.1), word("port"), word("other"))
}

#[cfg(test)]
mod tests {
    use super::finding;
    use crate::finding::Verdict;
    use serde_json::json;

    #[test]
    fn conflicts_are_named_with_both_ports() {
        assert_eq!(finding(&[]).verdict, Verdict::Ok);
        let conflict = json!({ "ip": "127.9.9.2", "port": "H1[1]", "other": "LID 4 of the agent at 10.9.0.2" });
        let one = finding(std::slice::from_ref(&conflict));
        assert_eq!(one.verdict, Verdict::Warn);
        let words = "IP address 127.9.9.2 belongs to H1[1], and LID 4 of the agent at 10.9.0.2 names it too";
        assert_eq!(one.found, words);
        let gid = json!({ "gid": "fe80::1", "port": "H1[1]", "other": "H2[1]" });
        let many = finding(&[conflict.clone(), gid, conflict.clone(), conflict.clone(), conflict]);
        assert!(
            many.found.contains("; GID fe80::1 belongs to H1[1]") && many.found.ends_with("; and 2 more"),
            "{}",
            many.found
        );
    }
}
